//! W3C trace contexts as they are stored and sent: `00-<trace id>-<span id>-<flags>`.

use std::fmt;

/// The length of version 00.
const LENGTH: usize = 55;
/// Where the flags' last digit stands.
const FLAGS_AT: usize = 54;

/// A place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context {
    pub trace: u128,
    pub span: u64,
    pub sampled: bool,
}

impl Context {
    pub fn random(sampled: bool) -> Self {
        // Zero is no id.
        Self { trace: rand::random::<u128>().max(1), span: rand::random::<u64>().max(1), sampled }
    }

    /// None where it isn't well-formed, by W3C's Trace Context, 3.2.2 and 4.3: then the trace starts anew. Version 00 has
    /// these 55 bytes and no more; what a later one adds stands behind another dash, and is dropped.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let dashes = bytes.len() >= LENGTH && [2, 35, 52].iter().all(|at| bytes[*at] == b'-');
        let hex = |from: usize, to: usize| {
            let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            let digits = text.get(from..to).filter(|t| t.bytes().all(is_digit))?;
            u128::from_str_radix(digits, 16).ok()
        };
        let (version, trace, span, flags) = (hex(0, 2)?, hex(3, 35)?, hex(36, 52)?, hex(53, 55)?);
        let ends = match version {
            0 => bytes.len() == LENGTH,
            _ => bytes.get(LENGTH).is_none_or(|next| *next == b'-'),
        };
        let known = dashes && ends && version != 0xff && trace != 0 && span != 0;
        known.then_some(Self { trace, span: u64::try_from(span).ok()?, sampled: flags & 1 == 1 })
    }

    /// Another place in the same trace.
    pub fn child(self) -> Self {
        Self { span: rand::random::<u64>().max(1), ..self }
    }

    /// Head sampling: the id decides, so that everybody who knows the ratio decides the same.
    pub fn sampled(self, ratio: f64) -> Self {
        // As OpenTelemetry's TraceIdRatioBased does: the low 63 bits against the ratio.
        let low = (self.trace & u128::from(u64::MAX >> 1)) as f64;
        Self { sampled: low < ratio.clamp(0.0, 1.0) * (1_u64 << 63) as f64, ..self }
    }

    /// The trace id alone, as receivers show it.
    pub fn trace_id(self) -> String {
        format!("{:032x}", self.trace)
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// A context that somebody sent, as it's stored and handed on: in version 00, so it's never longer than 55 bytes. Empty
/// where it isn't one.
pub fn received(text: &str) -> String {
    Context::parse(text).map(|context| context.to_string()).unwrap_or_default()
}

/// Whether a stored context says so. Looks at one byte.
pub fn is_sampled(traceparent: &str) -> bool {
    // The digits with the lowest bit set.
    traceparent.as_bytes().get(FLAGS_AT).is_some_and(|flag| b"13579bdfBDF".contains(flag))
}

/// The same place, for what happens long after: still found by its trace id, but no spans are made of it.
pub fn unsampled(mut traceparent: String) -> String {
    if is_sampled(&traceparent) {
        traceparent.truncate(FLAGS_AT - 1);
        traceparent.push_str("00");
    }
    traceparent
}
