//! The pseudo file system: the directories from the root down to the exports, derived from the exports'
//! paths (RFC 8881, section 7).
//!
//! If a node is an export or below one, clients see the export's file system in its place. Clients could
//! not reach an export below another one otherwise, so it covers the directory at its path there. Nodes are
//! identified by a hash of their path, so that handles survive a restart.
//!
//! When exports come and go, another tree takes the place of this one. Nodes keep their indices in it: a node
//! that nothing needs any more stays, and is not shown.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher;
use vfs::Timestamp;

use super::Export;

/// A node of a [`Pseudo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeIndex(usize);

/// The tree.
#[derive(Clone, Debug)]
pub(crate) struct Pseudo {
    nodes: Vec<Node>,
    /// When the tree was made.
    pub(crate) made: Timestamp,
}

/// One directory.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The hash of its path: its inode number and handle.
    pub(crate) id: u64,
    pub(crate) parent: NodeIndex,
    /// Its name in the parent; empty for the root.
    pub(crate) name: Box<[u8]>,
    pub(crate) children: BTreeMap<Box<[u8]>, NodeIndex>,
    /// The export with this path.
    pub(crate) export: Option<Arc<Export>>,
    /// The exports below it, without its own.
    pub(crate) below: Vec<Arc<Export>>,
}

impl Pseudo {
    /// The root, the only node that always exists.
    pub(crate) const ROOT: NodeIndex = NodeIndex(0);

    /// The tree over these exports.
    pub(crate) fn new<'e>(exports: impl Iterator<Item = &'e Arc<Export>>, made: Timestamp) -> Pseudo {
        let mut tree = Pseudo { nodes: vec![Node::new(Pseudo::ROOT, b"", b"/")], made };
        exports.for_each(|export| tree.add(export));
        tree
    }

    /// The tree over other exports, with the nodes of this one.
    pub(crate) fn over<'e>(&self, exports: impl Iterator<Item = &'e Arc<Export>>, made: Timestamp) -> Pseudo {
        let mut tree = Pseudo { made, ..self.clone() };
        for node in &mut tree.nodes {
            node.export = None;
            node.below.clear();
        }
        exports.for_each(|export| tree.add(export));
        tree
    }

    fn add(&mut self, export: &Arc<Export>) {
        let mut at = Pseudo::ROOT;
        let mut path = Vec::new();
        for name in export.path.as_bytes().split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            self.nodes[at.0].below.push(export.clone());
            path.push(b'/');
            path.extend_from_slice(name);
            let next = NodeIndex(self.nodes.len());
            let child = *self.nodes[at.0].children.entry(name.into()).or_insert(next);
            if child == next {
                self.nodes.push(Node::new(at, name, &path));
            }
            at = child;
        }
        self.nodes[at.0].export = Some(export.clone());
    }

    /// A node.
    pub(crate) fn node(&self, index: NodeIndex) -> &Node {
        // Only this type makes indices, and nodes are never removed, also in the trees that follow.
        &self.nodes[index.0]
    }

    /// The directory above a node; the root's is the root.
    pub(crate) fn parent(&self, index: NodeIndex) -> NodeIndex {
        self.node(index).parent
    }

    /// The number of a node in handles.
    pub(crate) fn id(&self, index: NodeIndex) -> u64 {
        self.node(index).id
    }

    /// The node with this number in handles, if it is needed.
    pub(crate) fn by_id(&self, id: u64) -> Option<NodeIndex> {
        let index = self.nodes.iter().position(|node| node.id == id).map(NodeIndex)?;
        (index == Pseudo::ROOT || self.node(index).is_needed()).then_some(index)
    }

    /// The number of directories in a node.
    pub(crate) fn count_children(&self, node: &Node) -> usize {
        node.children.values().filter(|child| self.node(**child).is_needed()).count()
    }

    /// The node and its descendants that have exports below them. For most exports there are none.
    pub(crate) fn on_the_way(&self, from: NodeIndex) -> Vec<NodeIndex> {
        let mut found = Vec::new();
        let mut rest = vec![from];
        while let Some(index) = rest.pop() {
            if !self.node(index).below.is_empty() {
                found.push(index);
                rest.extend(self.node(index).children.values());
            }
        }
        found
    }

    /// The names on the way from the node of an export to one below it.
    pub(crate) fn names_between(&self, from: NodeIndex, to: NodeIndex) -> Vec<&[u8]> {
        let (mut names, mut at) = (Vec::new(), to);
        while at != from && at != Pseudo::ROOT {
            names.push(&*self.node(at).name);
            at = self.parent(at);
        }
        names.reverse();
        names
    }

    /// The node of an export.
    pub(crate) fn of_export(&self, export: &Export) -> Option<NodeIndex> {
        let is_it = |node: &Node| node.export.as_ref().is_some_and(|other| other.id == export.id);
        self.nodes.iter().position(is_it).map(NodeIndex)
    }
}

impl Node {
    /// Is there an export here or below?
    fn is_needed(&self) -> bool {
        self.export.is_some() || !self.below.is_empty()
    }

    fn new(parent: NodeIndex, name: &[u8], path: &[u8]) -> Node {
        let mut hasher = SipHasher::new();
        hasher.write(path);
        Node {
            // Clients take inode number zero as none.
            id: hasher.finish().max(1),
            parent,
            name: name.into(),
            children: BTreeMap::new(),
            export: None,
            below: Vec::new(),
        }
    }
}
