//! Access times: the origin does not see reads that the cache serves.
//!
//! Badros reports them. After a hit, his cache sends a SETATTR of the access time if the last one was more
//! than half a minute ago. The option `atime_after` does the same; it is off by default for three reasons.
//! At most origins the SETATTR moves the file's ctime. Then every other cache must ask for the file and its
//! names again, only because a client has *read* it. Most origins refuse it to a user with the right to
//! read alone. And few programs need it. As with `noatime` and `relatime` of mount(8), correctness does not
//! depend on it.

use std::sync::Arc;
use std::time::Duration;

use vfs::{Caller, SetAttributes, SetTime};

use crate::core::Core;
use crate::table::Object;
use crate::trust::since;

/// After a refusal, no SETATTR is sent for the file for this long.
const REFUSED_FOR: Duration = Duration::from_secs(3600);

impl Core {
    /// A hit was served. If the origin's access time is older than `atime_after`, updates it in the
    /// background.
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
