//! How messages become bytes: one codec for every method, both ways.

use std::marker::PhantomData;

use bytes::{Buf, BufMut};
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// First allocation of each stream's send buffer; it grows. Small, since a server holds thousands of idle streams.
const BUFFER_BYTES: usize = 2 * 1024;
/// Bytes gathered from ready messages before they are handed on as one HTTP/2 write.
const WRITE_BYTES: usize = 32 * 1024;

/// What a method sends or receives: every message of `api`, and the types of `payload`.
pub trait Payload: Send + Sized + 'static {
    fn write(&self, buf: &mut impl BufMut);

    /// All of `buf` is the message.
    fn read(buf: &mut impl Buf) -> Result<Self, String>;
}

impl<T: Message + Default + 'static> Payload for T {
    fn write(&self, buf: &mut impl BufMut) {
        self.encode(buf).expect("a growing buffer has room");
    }

    fn read(buf: &mut impl Buf) -> Result<Self, String> {
        T::decode(buf).map_err(|error| error.to_string())
    }
}

/// Sends `E`, receives `D`.
pub struct Codec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for Codec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E: Payload, D: Payload> tonic::codec::Codec for Codec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<E: Payload, D: Payload> Encoder for Codec<E, D> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, item: E, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.write(buf);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, WRITE_BYTES)
    }
}

impl<E: Payload, D: Payload> Decoder for Codec<E, D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        // The same words as tonic's own: `serve::refuse` makes INVALID_ARGUMENT of it.
        D::read(buf).map(Some).map_err(|error| Status::internal(format!("malformed message: {error}")))
    }
}
