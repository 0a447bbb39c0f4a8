//! `leasehold umount`: detaches the mount at once, and returns when all dirty data is stored.

use std::path::Path;
use std::time::Duration;

use mount::How;

use super::{KIND, guardian, places};
use crate::departure::{Stage, Waiting};
use crate::{Failure, cli, output};

/// How long a process may take to notice that its mount is gone from every namespace.
const NOTICED: Duration = Duration::from_secs(5);

/// Unmounts. Unless told otherwise, waits for the mount's process.
pub async fn run(arguments: &cli::Umount) -> Result<(), Failure> {
    let directory = std::path::absolute(&arguments.directory)
        .map_err(|error| Failure(format!("cannot unmount {}: {error}", arguments.directory.display())))?;
    let at = directory.display();
    guardian::stand_in(&directory);
    let waiting = match places::cache_of(&directory) {
        Some(cache) => Waiting::on(&cache).await?,
        None => None,
    };
    if !matches!(mount::mounted_at(&directory), Some((kind, _)) if kind == KIND) {
        return match waiting.filter(|waiting| waiting.last.stage != Stage::Running) {
            // It is unmounted already: by another program, or by an earlier `umount` that did not wait.
            Some(waiting) if !arguments.lazy => waiting.ended(&at.to_string()).await,
            _ => Err(Failure(format!(
                "nothing of Leasehold is mounted on {at}; `findmnt -t fuse.leasehold` lists its mounts"
            ))),
        };
    }
    let silent = waiting.is_none() && !mount::is_dead(&directory);
    let connection = mount::mounted_at(&directory).map(|(_, connection)| connection);
    unmount(&directory, arguments)?;
    let Some(mut waiting) = waiting else {
        // A bind mount of one of our mounts has no process of its own and leaves nothing to store.
        if silent && !connection.is_some_and(mount::has_mounts) {
            output::tell(format_args!(
                "{at} is unmounted; its process does not report what is left to store: wait until it has exited"
            ));
        }
        return Ok(());
    };
    if arguments.lazy || arguments.force {
        let left = waiting.last.left;
        if left.files > 0 {
            output::tell(format_args!(
                "{at} is detached; {left}, and its process runs until then; `leasehold umount {at}` waits for it"
            ));
        }
        return Ok(());
    }
    if !waiting.begun(NOTICED).await {
        output::tell(format_args!(
            "{at} is unmounted here, and mounted elsewhere still (perhaps in another mount namespace), so its process goes on"
        ));
        return Ok(());
    }
    waiting.ended(&at.to_string()).await
}

fn unmount(directory: &Path, arguments: &cli::Umount) -> Result<(), Failure> {
    let how = match (arguments.lazy, arguments.force) {
        (true, _) => How::Lazy,
        (false, true) => How::Forced,
        (false, false) => How::Plain,
    };
    mount::unmount(directory, how).map_err(|error| {
        let at = directory.display();
        Failure(format!(
            "cannot unmount {at}: {error}; stop the programs that use it (fuser -m {at}), or pass --lazy"
        ))
    })
}
