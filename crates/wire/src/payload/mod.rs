//! Answers that carry stored resources: written from, and read into, the bytes that the store keeps.
//!
//! An object goes over the wire as its bytes plus the few that add its revision (`Object::revision_suffix`); whoever
//! decodes it as a plain `Resource` sees both. The bytes are copied once, from the shared `Bytes` of the cache into the
//! stream's send buffer: every watcher needs that copy anyway, so there's nothing left to share by framing an event
//! beforehand.

mod read;
mod write;

use std::sync::Arc;

use api::v1;
use bytes::{Buf, BufMut};
use model::{Object, Revision};
use prost::Message;
use store::WatchItem;

use crate::codec::Payload;

/// `v1::WatchResponse`.
#[derive(Debug, PartialEq)]
pub struct Item(pub WatchItem);

/// `v1::GetResponse`.
#[derive(Debug, PartialEq)]
pub struct One(pub Object);

/// `v1::ListResponse`.
#[derive(Debug, Default, PartialEq)]
pub struct Rows {
    pub objects: Vec<Object>,
    pub next_page_token: String,
    pub revision: Revision,
}

/// `v1::WatchCoordinationResponse`: the state isn't cloned for each watcher.
#[derive(Debug, PartialEq)]
pub struct State(pub Arc<v1::Coordination>);

impl Payload for State {
    fn write(&self, buf: &mut impl BufMut) {
        write::message(1, &*self.0, buf);
    }

    fn read(buf: &mut impl Buf) -> Result<Self, String> {
        let response = v1::WatchCoordinationResponse::decode(buf).map_err(|error| error.to_string())?;
        Ok(Self(Arc::new(response.coordination.unwrap_or_default())))
    }
}

#[cfg(test)]
mod tests;
