//! Access times: what is read here, the origin does not see being read.
//!
//! Badros tells it: after a hit, a SETATTR of the access time if the last one was more than half a minute ago. It can be
//! had here too (`atime_after`), and is not the default. The SETATTR moves the file's ctime at most origins, so that
//! every other cache of the file, and every remembered name of it, has to be asked for anew because somebody has *read*
//! the file; a user who may only read is not allowed it by most; and few programs want to know. As with `noatime` and
//! `relatime` of mount(8), correctness does not depend on it.

use std::sync::Arc;
use std::time::Duration;

use vfs::{Caller, SetAttributes, SetTime};

use crate::core::Core;
use crate::inspect::since;
use crate::table::Object;

/// A reader who was refused is not tried again for the file so soon.
const REFUSED_FOR: Duration = Duration::from_secs(3600);

impl Core {
    /// A hit was served: tells the origin in the background, if it is to be told and does not know of a read as young.
    pub fn touch(&self, caller: &Caller, object: &Arc<Object>) {
        let Some(after) = self.options.atime_after else { return };
        let now = self.policy.wall();
        let due = self.with(object, |state| {
            let old = state.attributes().is_some_and(|known| since(known.atime, now) > after);
            let rested = state.touched.is_none_or(|(at, pause)| at.elapsed() >= pause);
            if old && rested {
                state.touched = Some((tokio::time::Instant::now(), after));
            }
            old && rested
        });
        let Some(core) = self.share().filter(|_| due) else { return };
        let (caller, object) = (Caller { deadline: None, ..caller.clone() }, object.clone());
        tokio::spawn(async move {
            let set = SetAttributes { atime: Some(SetTime::Server), ..SetAttributes::default() };
            match core.setattr(&caller, &object.handle, &set, None).await {
                Ok(_) => core.counters.atimes.bump(),
                Err(_) => core.with(&object, |state| {
                    state.touched = Some((tokio::time::Instant::now(), REFUSED_FOR));
                }),
            }
        });
    }
}
