//! Opens over a layer that has none: names are looked up or made, and that is all.

use std::sync::Arc;

use vfs::{
    Attributes, Caller, CreateHow, Handle, Name, Node, OpenId, OpenRequest, Opened, Result, SetAttributes,
    Status, Wcc,
};

use super::Shell;

/// The file that an open names.
struct Found {
    node: Node,
    directory: Wcc,
    created: bool,
}

impl Shell {
    pub(super) async fn open_stateless(
        self: &Arc<Shell>,
        caller: &Caller,
        request: &OpenRequest,
    ) -> Result<Opened> {
        let found = self.found(caller, request).await?;
        let attributes = self.attributes_of(caller, &found.node).await?;
        Ok(Opened {
            id: OpenId(0),
            handle: found.node.handle,
            attributes,
            lease: None,
            directory: found.directory,
            created: found.created,
            granted: None,
            directory_lease: None,
            read: None,
        })
    }

    async fn attributes_of(&self, caller: &Caller, node: &Node) -> Result<Attributes> {
        match node.attributes {
            Some(attributes) => Ok(attributes),
            None => self.below.getattr(caller, &node.handle).await,
        }
    }

    /// The file that an open names, made if need be.
    async fn found(&self, caller: &Caller, request: &OpenRequest) -> Result<Found> {
        let directory = &request.handle;
        match (&request.name, &request.create) {
            (None, _) => {
                let node = Node { handle: request.handle, attributes: None };
                Ok(Found { node, directory: Wcc::default(), created: false })
            }
            (Some(name), None) => self.looked_up(caller, directory, name).await,
            (Some(name), Some((CreateHow::Unchecked, set))) => {
                self.created_unless_there(caller, directory, name, set).await
            }
            (Some(name), Some((how, set))) => self.created(caller, directory, name, *how, set).await,
        }
    }

    async fn looked_up(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Found> {
        let looked = self.below.lookup(caller, directory, name, vfs::Want::None).await?;
        let directory = Wcc::seen(looked.directory);
        Ok(Found { node: looked.node, directory, created: false })
    }

    async fn created(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Found> {
        let created = self.below.create(caller, directory, name, how, set).await?;
        Ok(Found { node: created.node, directory: created.directory, created: true })
    }

    /// An unchecked CREATE does not say whether it has made the file; a guarded one does, but only a LOOKUP finds a file
    /// in a directory that the caller may not write to.
    async fn created_unless_there(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> Result<Found> {
        let mut found = self.looked_up(caller, directory, name).await;
        if matches!(&found, Err(error) if error.status == Status::NoEnt) {
            match self.created(caller, directory, name, CreateHow::Guarded, set).await {
                // Somebody was faster.
                Err(error) if error.status == Status::Exist => {
                    found = self.looked_up(caller, directory, name).await;
                }
                result => return result,
            }
        }
        if set.size.is_none() {
            return found;
        }
        found?;
        // Only the size counts of what is there; whether the caller may set it is for the layer below to say.
        let size = SetAttributes { size: set.size, ..SetAttributes::default() };
        let found = self.created(caller, directory, name, CreateHow::Unchecked, &size).await?;
        Ok(Found { created: false, ..found })
    }
}
