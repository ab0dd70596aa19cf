//! A YAML document as a tree of nodes with their lines.
//!
//! Scalars stay text: the type of a value is that of its field, as in the YAML library of Go, where `value: 50.0` is the
//! text `50.0`.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};

use crate::ConfigError;
use crate::bounds::{NODES_DEEP_MAX, NODES_MAX};

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Scalar {
        text: String,
        /// Written without quotes, so that it may be a number, a boolean or null.
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) line: usize,
    pub(crate) name: String,
    plain: bool,
}

impl Key {
    /// Returns whether YAML reads the key as a string.
    pub(crate) fn is_text(&self) -> bool {
        !self.plain || !(is_null(&self.name) || self.name.parse::<f64>().is_ok())
    }
}

impl Node {
    /// Returns whether this is an empty or absent value.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true } if is_null(text))
    }

    /// Returns what kind of node this is, for errors.
    pub(crate) const fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Scalar { .. } => "a single value",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
        }
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Parses `source`, the contents of `file`, which is one document. An empty file is null.
pub(crate) fn parse(file: &str, source: &str) -> Result<Node, ConfigError> {
    let mut reader =
        Reader { file, parser: Parser::new_from_str(source), anchors: HashMap::new(), nodes: 0 };
    let mut root = None;
    loop {
        let (event, line) = reader.next()?;
        match event {
            Event::StreamEnd => break,
            Event::DocumentStart(_) if root.is_some() => {
                let message =
                    "a second YAML document; write one domain per file, and one document per file";
                return Err(ConfigError::at(file, line, message));
            }
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            event => root = Some(reader.node(event, line, 0)?),
        }
    }
    let empty = Kind::Scalar { text: String::new(), plain: true };
    Ok(root.unwrap_or(Node { line: 1, kind: empty }))
}

struct Reader<'a> {
    file: &'a str,
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), ConfigError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => {
                let message = format!("not valid YAML: {}", error.info());
                Err(ConfigError::at(self.file, error.marker().line(), message))
            }
            None => Ok((Event::StreamEnd, 1)),
        }
    }

    fn node(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Node, ConfigError> {
        if NODES_DEEP_MAX < depth {
            let message = format!("nested more than {NODES_DEEP_MAX} levels deep");
            return Err(ConfigError::at(self.file, line, message));
        }
        let before = self.nodes;
        self.count(1, line)?;
        let (kind, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == ScalarStyle::Plain;
                (Kind::Scalar { text: text.into_owned(), plain }, anchor)
            }
            Event::SequenceStart(anchor, _) => (Kind::List(self.list(depth)?), anchor),
            Event::MappingStart(anchor, _) => (Kind::Map(self.map(depth)?), anchor),
            Event::Alias(anchor) => {
                let Some((node, size)) = self.anchors.get(&anchor).cloned() else {
                    let message = "an alias inside of its own anchor, which has no end";
                    return Err(ConfigError::at(self.file, line, message));
                };
                self.count(size, line)?;
                return Ok(Node { line, kind: node.kind });
            }
            _ => {
                return Err(ConfigError::at(self.file, line, "not valid YAML: a value is missing"));
            }
        };
        let node = Node { line, kind };
        // Anchors are numbered from 1.
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), self.nodes - before));
        }
        Ok(node)
    }

    fn count(&mut self, nodes: usize, line: usize) -> Result<(), ConfigError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if NODES_MAX < self.nodes {
            let message =
                format!("more than {NODES_MAX} values; split the file, or use fewer aliases");
            return Err(ConfigError::at(self.file, line, message));
        }
        Ok(())
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, ConfigError> {
        let mut list = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(list),
                (event, line) => list.push(self.node(event, line, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(Key, Node)>, ConfigError> {
        let mut map: Vec<(Key, Node)> = Vec::new();
        loop {
            let (event, line) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(map);
            }
            let Kind::Scalar { text: name, plain } = self.node(event, line, depth + 1)?.kind else {
                return Err(ConfigError::at(
                    self.file,
                    line,
                    "a key must be a word, not a list or a map",
                ));
            };
            if name == "<<" {
                let message = "merge keys (<<) are not supported; write the fields out, or use an alias for the whole value";
                return Err(ConfigError::at(self.file, line, message));
            }
            if let Some((first, _)) = map.iter().find(|(key, _)| key.name == name) {
                let message =
                    format!("{name:?} is given twice, first in line {}; keep one", first.line);
                return Err(ConfigError::at(self.file, line, message));
            }
            let (event, value_line) = self.next()?;
            let value = self.node(event, value_line, depth + 1)?;
            map.push((Key { line, name, plain }, value));
        }
    }
}
