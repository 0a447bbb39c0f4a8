//! `leasehold cluster …`: shows and directs a member.

use serde_json::Value;

use super::ClusterRequest;
use crate::Failure;
use crate::admin::{self, Request};
use crate::cli::cluster::{ClusterArguments, ClusterCommand};
use crate::units::counted;

/// Carries out a command.
///
/// # Errors
/// If no member runs on the directory, or if it cannot do what is asked.
pub async fn run(arguments: &ClusterArguments) -> Result<(), Failure> {
    let (directory, request) = match &arguments.command {
        ClusterCommand::Status(of) => {
            let status = admin::ask(&of.directory).await?;
            let cluster = status.get("cluster").filter(|cluster| !cluster.is_null());
            let cluster = cluster.ok_or_else(|| {
                Failure(format!("what runs on {} is no member of a cluster", of.directory.display()))
            })?;
            if arguments.json {
                crate::output::line(cluster);
            } else {
                crate::output::line(text(cluster));
            }
            return Ok(());
        }
        ClusterCommand::Drain(of) => (&of.directory, ClusterRequest::Drain),
        ClusterCommand::Resume(of) => (&of.directory, ClusterRequest::Resume),
    };
    let answer = admin::ask_for(directory, &Request::Cluster(request)).await?;
    match answer["error"].as_str() {
        Some(error) => Err(Failure(error.to_owned())),
        None if arguments.json => {
            crate::output::line(&answer["done"]);
            Ok(())
        }
        None => {
            crate::output::line(match request {
                ClusterRequest::Drain => {
                    "drained: other members have its servers, and it takes none until `resume`"
                }
                ClusterRequest::Resume => "it takes servers again",
            });
            Ok(())
        }
    }
}

/// The state of a member and of what it sees, as text.
pub fn text(cluster: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut lines = vec![format!(
        "member {} of cluster {}: {}",
        word(&cluster["member"]),
        word(&cluster["name"]),
        match cluster["term_left_ms"].as_u64() {
            Some(left) => format!("in, {}.{} s of its term are left", left / 1000, left % 1000 / 100),
            None => "not in".to_owned(),
        }
    )];
    for member in list(&cluster["members"]) {
        lines.push(format!(
            "  member  {:16} {}, version {}{}",
            word(&member["name"]),
            counted(number(&member["servers"]), "server", "servers"),
            word(&member["version"]),
            if member["draining"] == true { ", draining" } else { "" }
        ));
    }
    for server in list(&cluster["servers"]) {
        let member =
            server["member"].as_str().map_or("no member".to_owned(), |member| format!("member {member}"));
        lines.push(format!(
            "  server  {:16} {member}, epoch {}",
            word(&server["address"]),
            number(&server["epoch"])
        ));
    }
    if let Some(trouble) = cluster["trouble"].as_str() {
        lines.push(format!("  trouble {trouble}"));
    }
    lines.join("\n")
}
