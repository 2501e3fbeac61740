//! Aho and Corasick's automaton, which also knows how much of a value may have begun: that is what is held back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Copy, Default)]
struct Node {
    /// The longest proper suffix of what was read that is the beginning of a form.
    fail: u32,
    /// How long what was read is.
    depth: u32,
    /// Length of the longest form that ends here; 0 for none.
    found: u32,
    /// Where its edges are.
    edges: u32,
    count: u16,
}

/// Finds all forms of all values at once.
pub(super) struct Automaton {
    nodes: Vec<Node>,
    edges: Vec<(u8, u32)>,
    first: [u32; 256],
}

impl Automaton {
    /// Nothing of a form was read.
    pub(super) const START: u32 = 0;

    pub(super) fn new(forms: &BTreeSet<Vec<u8>>) -> Self {
        let mut children: Vec<BTreeMap<u8, u32>> = vec![BTreeMap::new()];
        let mut nodes = vec![Node::default()];
        for form in forms {
            let (mut at, mut depth) = (0_u32, 0_u32);
            for byte in form {
                depth += 1;
                let next = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
                at = *children[at as usize].entry(*byte).or_insert(next);
                if at == next {
                    children.push(BTreeMap::new());
                    nodes.push(Node {
                        depth,
                        ..Node::default()
                    });
                }
            }
            nodes[at as usize].found = depth;
        }
        let mut edges = Vec::with_capacity(nodes.len());
        for (node, children) in nodes.iter_mut().zip(&children) {
            node.edges = u32::try_from(edges.len()).unwrap_or(u32::MAX);
            node.count = u16::try_from(children.len()).unwrap_or(u16::MAX);
            edges.extend(children.iter().map(|(byte, to)| (*byte, *to)));
        }
        let mut first = [0; 256];
        for (byte, to) in &children[0] {
            first[usize::from(*byte)] = *to;
        }
        let mut this = Self { nodes, edges, first };
        this.link();
        this
    }

    /// Sets the links that are taken when a form breaks off, by depth.
    fn link(&mut self) {
        let mut queue: VecDeque<u32> = self.first.iter().copied().filter(|to| *to > 0).collect();
        while let Some(at) = queue.pop_front() {
            let fail = self.nodes[at as usize].fail;
            for edge in self.edges_of(at) {
                let (byte, to) = self.edges[edge];
                let target = self.step(fail, byte);
                let inherited = self.nodes[target as usize].found;
                let node = &mut self.nodes[to as usize];
                node.fail = target;
                node.found = node.found.max(inherited);
                queue.push_back(to);
            }
        }
    }

    fn edges_of(&self, at: u32) -> std::ops::Range<usize> {
        let node = &self.nodes[at as usize];
        node.edges as usize..node.edges as usize + usize::from(node.count)
    }

    /// The state after one more byte.
    pub(super) fn step(&self, mut at: u32, byte: u8) -> u32 {
        while at != Self::START {
            let edges = &self.edges[self.edges_of(at)];
            if let Some((_, to)) = edges.iter().find(|(b, _)| *b == byte) {
                return *to;
            }
            at = self.nodes[at as usize].fail;
        }
        self.first[usize::from(byte)]
    }

    /// Length of the longest form that ends with the last byte; 0 for none.
    pub(super) fn found(&self, at: u32) -> usize {
        self.nodes[at as usize].found as usize
    }

    /// How many of the last bytes may be the beginning of a form.
    pub(super) fn pending(&self, mut at: u32) -> usize {
        // A form that cannot go on is no beginning any more.
        while at != Self::START && self.nodes[at as usize].count == 0 {
            at = self.nodes[at as usize].fail;
        }
        self.nodes[at as usize].depth as usize
    }
}
