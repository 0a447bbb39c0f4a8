//! Opens that were closed a moment ago. A CLOSE may end an open while another OPEN of the same owner and
//! file returns the same open from the file system.
//!
//! A pure, bounded table. Ids of opens are never reused.

use std::collections::{HashSet, VecDeque};

use vfs::OpenId;

use crate::exports::ExportId;

/// Far more than the closes that can happen while one OPEN returns.
const CLOSED_MAX: usize = 8192;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    opens: HashSet<(ExportId, OpenId)>,
    order: VecDeque<(ExportId, OpenId)>,
}

impl Closed {
    /// Notes that this open has ended.
    pub(crate) fn add(&mut self, export: ExportId, open: OpenId) {
        if self.opens.insert((export, open)) {
            self.order.push_back((export, open));
        }
        if self.order.len() > CLOSED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.opens.remove(&oldest);
        }
    }

    /// Has this open ended?
    pub(crate) fn contains(&self, export: ExportId, open: OpenId) -> bool {
        self.opens.contains(&(export, open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known() {
        let mut closed = Closed::default();
        for id in 0..=CLOSED_MAX as u64 {
            closed.add(ExportId(1), OpenId(id));
        }
        assert!(!closed.contains(ExportId(1), OpenId(0)) && closed.contains(ExportId(1), OpenId(1)));
        assert!(!closed.contains(ExportId(2), OpenId(1)));
        assert_eq!(closed.opens.len(), CLOSED_MAX);
    }
}
