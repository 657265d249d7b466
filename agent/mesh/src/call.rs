//! The wire form of calls between the PMI servers of a launch's nodes.

use super::frame::FrameError;
use lattice_model::call::{BODY_BYTES_MAX, Call, CallKind, Service};
use rkyv::{Archive, Deserialize, Serialize};

/// The wire form of [`Call`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireCall {
    pub from: u32,
    pub to: u32,
    pub service: WireService,
    pub is_reply: bool,
    pub number: u64,
    pub body: Vec<u8>,
}

/// The wire form of [`Service`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireService {
    Names,
    Published,
    Modex,
    Deaths,
}

impl From<Call> for WireCall {
    fn from(Call { from, to, service, kind, number, body }: Call) -> Self {
        let service = match service {
            Service::Names => WireService::Names,
            Service::Published => WireService::Published,
            Service::Modex => WireService::Modex,
            Service::Deaths => WireService::Deaths,
        };
        Self { from, to, service, is_reply: kind == CallKind::Reply, number, body }
    }
}

impl TryFrom<WireCall> for Call {
    type Error = FrameError;

    fn try_from(WireCall { from, to, service, is_reply, number, body }: WireCall) -> Result<Self, FrameError> {
        if body.len() > BODY_BYTES_MAX {
            return Err(FrameError::Malformed);
        }
        let service = match service {
            WireService::Names => Service::Names,
            WireService::Published => Service::Published,
            WireService::Modex => Service::Modex,
            WireService::Deaths => Service::Deaths,
        };
        let kind = if is_reply { CallKind::Reply } else { CallKind::Request };
        Ok(Self { from, to, service, kind, number, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_call_is_the_same_behind_the_wire(from in any::<u32>(), to in any::<u32>(), which in 0..4usize, is_reply in any::<bool>(),
                                              number in any::<u64>(), body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let service = [Service::Names, Service::Published, Service::Modex, Service::Deaths][which];
            let kind = if is_reply { CallKind::Reply } else { CallKind::Request };
            let call = Call { from, to, service, kind, number, body };
            prop_assert_eq!(Call::try_from(WireCall::from(call.clone())).unwrap(), call);
        }
    }

    #[test]
    fn one_that_is_too_long_is_refused() {
        let call = Call { from: 0, to: 1, service: Service::Names, kind: CallKind::Request, number: 1, body: vec![0; BODY_BYTES_MAX + 1] };
        assert!(matches!(Call::try_from(WireCall::from(call)), Err(FrameError::Malformed)));
    }
}
