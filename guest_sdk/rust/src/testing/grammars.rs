//! Regular expressions over the host's tokens, which are bytes: what of a text may come next.

use crate::Errno;
use std::collections::BTreeSet;
use std::iter::{repeat, Peekable};
use std::str::CharIndices;
use std::string::{String, ToString};
use std::vec::Vec;

use super::{EOS, VOCAB_SIZE};

const NODES_MAX: usize = 100_000;
const DEPTH_MAX: usize = 100;

/// Why an expression cannot be compiled.
pub(super) type Refusal = (Errno, String);
type Class = [bool; 128];

/// What a text must be an instance of.
pub(super) enum Grammar {
    /// Each text is one.
    Anything,
    /// What an automaton comes to its end with; it begins at its last node.
    Expression(Vec<Node>),
}

/// A state of the automaton.
pub(super) enum Node {
    End,
    Byte(u8, usize),
    OneOf(Class, usize),
    Either(Vec<usize>),
}

enum Tree {
    Bytes(Vec<u8>),
    OneOf(Class),
    Both(Vec<Tree>),
    Either(Vec<Tree>),
    Repeat(std::boxed::Box<Tree>, usize, Option<usize>),
}

impl Grammar {
    /// The texts that an expression matches from beginning to end.
    pub(super) fn expression(text: &str) -> Result<Grammar, Refusal> {
        let mut parser = Parser { rest: text.char_indices().peekable(), end: text.len(), depth: 0 };
        let tree = parser.either()?;
        if parser.rest.peek().is_some() {
            return Err(parser.mistake("this ) closes nothing"));
        }
        let mut nodes = Vec::from([Node::End]);
        let start = build(&mut nodes, &tree, 0)?;
        nodes.push(Node::Either([start].into()));
        Ok(Grammar::Expression(nodes))
    }

    /// Whether each token may come behind a text; `EINVAL` when that does not fit.
    pub(super) fn allowed(&self, text: &[u32]) -> Result<Vec<bool>, Errno> {
        let nodes = match self {
            Grammar::Anything => return Ok(repeat(true).take(VOCAB_SIZE as usize).collect()),
            Grammar::Expression(nodes) => nodes,
        };
        let mut states = closed(nodes, [nodes.len() - 1].into());
        let mut allowed = next(nodes, &states);
        for token in text {
            if !allowed[*token as usize] {
                return Err(Errno::EINVAL);
            }
            if *token == EOS {
                // Behind the end of a text there is nothing else.
                states.retain(|state| matches!(nodes[*state], Node::End));
            } else {
                let goes = |state: &usize| step(&nodes[*state], *token);
                states = closed(nodes, states.iter().filter_map(goes).collect());
            }
            allowed = next(nodes, &states);
        }
        Ok(allowed)
    }
}

fn step(node: &Node, token: u32) -> Option<usize> {
    match node {
        Node::Byte(byte, to) if u32::from(*byte) == token => Some(*to),
        Node::OneOf(class, to) if class.get(token as usize) == Some(&true) => Some(*to),
        _ => None,
    }
}

/// States that are reached from these without a token.
fn closed(nodes: &[Node], mut from: Vec<usize>) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    while let Some(state) = from.pop() {
        if found.insert(state) {
            if let Node::Either(to) = &nodes[state] {
                from.extend(to);
            }
        }
    }
    found
}

fn next(nodes: &[Node], states: &BTreeSet<usize>) -> Vec<bool> {
    let mut allowed: Vec<bool> = repeat(false).take(VOCAB_SIZE as usize).collect();
    for state in states {
        match &nodes[*state] {
            Node::End => allowed[EOS as usize] = true,
            Node::Byte(byte, _) => allowed[usize::from(*byte)] = true,
            Node::OneOf(class, _) => allowed.iter_mut().zip(class).for_each(|(a, c)| *a |= *c),
            Node::Either(_) => {}
        }
    }
    allowed
}

/// Adds the nodes of a tree that goes on at `to`; where it begins.
fn build(nodes: &mut Vec<Node>, tree: &Tree, to: usize) -> Result<usize, Refusal> {
    if nodes.len() > NODES_MAX {
        return Err((Errno::EFBIG, "the expression is too large for a test's host".to_string()));
    }
    let mut add = |node| {
        nodes.push(node);
        nodes.len() - 1
    };
    match tree {
        Tree::Bytes(bytes) => Ok(bytes.iter().rev().fold(to, |to, b| add(Node::Byte(*b, to)))),
        Tree::OneOf(class) => Ok(add(Node::OneOf(*class, to))),
        Tree::Both(parts) => parts.iter().rev().try_fold(to, |to, part| build(nodes, part, to)),
        Tree::Either(parts) => {
            let begins: Result<_, _> = parts.iter().map(|part| build(nodes, part, to)).collect();
            nodes.push(Node::Either(begins?));
            Ok(nodes.len() - 1)
        }
        Tree::Repeat(part, least, most) => {
            let mut at = to;
            match most {
                None => {
                    at = add(Node::Either(Vec::new()));
                    let again = build(nodes, part, at)?;
                    nodes[at] = Node::Either([again, to].into());
                }
                Some(most) => {
                    for _ in *least..*most {
                        let once = build(nodes, part, at)?;
                        nodes.push(Node::Either([once, to].into()));
                        at = nodes.len() - 1;
                    }
                }
            }
            (0..*least).try_fold(at, |at, _| build(nodes, part, at))
        }
    }
}

// --- The syntax ----------------------------------------------------------------------------------

struct Parser<'a> {
    rest: Peekable<CharIndices<'a>>,
    end: usize,
    depth: usize,
}

impl Parser<'_> {
    fn mistake(&mut self, words: &str) -> Refusal {
        let column = self.rest.peek().map_or(self.end, |(at, _)| *at) + 1;
        (Errno::EINVAL, std::format!("at column {}: {}", column, words))
    }

    fn comes(&mut self, wanted: char) -> bool {
        self.rest.next_if(|(_, found)| *found == wanted).is_some()
    }

    fn either(&mut self) -> Result<Tree, Refusal> {
        let mut parts = Vec::from([self.both()?]);
        while self.comes('|') {
            parts.push(self.both()?);
        }
        Ok(Tree::Either(parts))
    }

    fn both(&mut self) -> Result<Tree, Refusal> {
        let mut parts = Vec::new();
        while self.rest.peek().map_or(false, |(_, c)| !matches!(c, '|' | ')')) {
            let part = self.part()?;
            parts.push(self.repeated(part)?);
        }
        Ok(Tree::Both(parts))
    }

    fn part(&mut self) -> Result<Tree, Refusal> {
        match self.rest.next().map(|(_, c)| c) {
            Some('(') => self.group(),
            Some('[') => self.class().map(Tree::OneOf),
            Some('.') => Ok(Tree::OneOf(class_of(|b| b != b'\n'))),
            Some('\\') => match self.escape()? {
                Escape::Byte(byte) => Ok(Tree::Bytes([byte].into())),
                Escape::Class(class) => Ok(Tree::OneOf(class)),
            },
            Some('^' | '$') => Err(self.mistake("a text matches as a whole: ^ and $ are for none")),
            Some(c @ ('*' | '+' | '?' | '{')) => {
                Err(self.mistake(&std::format!("nothing is there for {}", c)))
            }
            Some(c) => Ok(Tree::Bytes(c.to_string().into_bytes())),
            None => Err(self.mistake("the expression ends too early")),
        }
    }

    fn group(&mut self) -> Result<Tree, Refusal> {
        if self.comes('?') && !self.comes(':') {
            return Err(self.mistake("of groups with a ? a test's host knows (?: alone"));
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err((Errno::EFBIG, "groups lie too deep".to_string()));
        }
        let tree = self.either()?;
        self.depth -= 1;
        if self.comes(')') {
            Ok(tree)
        } else {
            Err(self.mistake("a group is not closed"))
        }
    }

    fn repeated(&mut self, part: Tree) -> Result<Tree, Refusal> {
        let (least, most) = match self.rest.peek().map(|(_, c)| *c) {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => (0, Some(0)),
            _ => return Ok(part),
        };
        let counted = self.comes('{');
        let (least, most) = if counted { self.counts()? } else { (least, most) };
        if !counted {
            self.rest.next();
        }
        self.comes('?'); // whether it takes few or many: the texts are the same
        let tree = Tree::Repeat(std::boxed::Box::new(part), least, most);
        self.repeated(tree)
    }

    /// What stands between { and }, and that.
    fn counts(&mut self) -> Result<(usize, Option<usize>), Refusal> {
        let least = self.number().unwrap_or(0);
        let most = if self.comes(',') { self.number() } else { Some(least) };
        if !self.comes('}') || most.map_or(false, |most| most < least) {
            return Err(self.mistake("that is no number of times"));
        }
        if least.max(most.unwrap_or(0)) > NODES_MAX {
            return Err((Errno::EFBIG, "that is too many times".to_string()));
        }
        Ok((least, most))
    }

    fn number(&mut self) -> Option<usize> {
        let mut digits = String::new();
        while let Some((_, digit)) = self.rest.next_if(|(_, c)| c.is_ascii_digit()) {
            digits.push(digit);
        }
        digits.parse().ok()
    }

    fn class(&mut self) -> Result<Class, Refusal> {
        let negated = self.comes('^');
        let mut class = class_of(|_| false);
        let mut first = true;
        while first || !self.comes(']') {
            first = false;
            let from = match self.member()? {
                Escape::Class(other) => {
                    class.iter_mut().zip(other).for_each(|(mine, o)| *mine |= o);
                    continue;
                }
                Escape::Byte(byte) => byte,
            };
            let mut to = from;
            if self.range_follows() {
                self.rest.next();
                to = match self.member()? {
                    Escape::Byte(byte) if byte >= from => byte,
                    _ => return Err(self.mistake("that is no range")),
                };
            }
            (from..=to).for_each(|byte| class[usize::from(byte)] = true);
        }
        if negated {
            class.iter_mut().for_each(|mine| *mine = !*mine);
        }
        if class.contains(&true) {
            Ok(class)
        } else {
            Err(self.mistake("the class is empty"))
        }
    }

    /// Whether a - comes that is not the class's last.
    fn range_follows(&mut self) -> bool {
        let mut ahead = self.rest.clone().map(|(_, c)| c);
        ahead.next() == Some('-') && ahead.next().map_or(false, |c| c != ']')
    }

    fn member(&mut self) -> Result<Escape, Refusal> {
        match self.rest.next().map(|(_, c)| c) {
            Some('\\') => self.escape(),
            Some(c) if c.is_ascii() => Ok(Escape::Byte(c as u8)),
            Some(_) => Err(self.mistake("classes of a test's host are ASCII")),
            None => Err(self.mistake("a class is not closed")),
        }
    }

    fn escape(&mut self) -> Result<Escape, Refusal> {
        let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let space = |b: u8| b.is_ascii_whitespace() || b == 0x0b;
        match self.rest.next().map(|(_, c)| c) {
            Some('d') => Ok(Escape::Class(class_of(|b| b.is_ascii_digit()))),
            Some('D') => Ok(Escape::Class(class_of(|b| !b.is_ascii_digit()))),
            Some('w') => Ok(Escape::Class(class_of(word))),
            Some('W') => Ok(Escape::Class(class_of(|b| !word(b)))),
            Some('s') => Ok(Escape::Class(class_of(space))),
            Some('S') => Ok(Escape::Class(class_of(|b| !space(b)))),
            Some('n') => Ok(Escape::Byte(b'\n')),
            Some('r') => Ok(Escape::Byte(b'\r')),
            Some('t') => Ok(Escape::Byte(b'\t')),
            Some(c) if c.is_ascii_punctuation() => Ok(Escape::Byte(c as u8)),
            _ => Err(self.mistake("a test's host does not know this escape")),
        }
    }
}

enum Escape {
    Byte(u8),
    Class(Class),
}

fn class_of(is: impl Fn(u8) -> bool) -> Class {
    let mut class = [false; 128];
    (0..128u8).for_each(|byte| class[usize::from(byte)] = is(byte));
    class
}

#[cfg(test)]
mod tests {
    use super::Grammar;
    use std::vec::Vec;

    /// Whether an expression matches a text; `None`: it cannot be compiled.
    fn matches(expression: &str, text: &str) -> Option<bool> {
        let grammar = Grammar::expression(expression).ok()?;
        let mut tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        tokens.push(super::EOS);
        Some(grammar.allowed(&tokens).is_ok())
    }

    #[test]
    fn an_expression_matches_a_text_as_a_whole() {
        for (expression, yes, no) in [
            ("abc", "abc", "ab"),
            ("a|bc|", "", "ac"),
            ("(19|20)[0-9]{2}", "2026", "1826"),
            ("a{2,3}", "aaa", "aaaa"),
            ("a{2,}b?", "aaaaab", "ab"),
            ("a{3}", "aaa", "aa"),
            ("(?:ab)*c+", "ababcc", "aba"),
            ("(a*)*b", "aab", "aa"),
            (".+?", "x y", "x\ny"),
            ("[^a-c]", "d", "b"),
            (r"[]x]", "]", "y"),
            (r"[a\-z-]{3}", "a-z", "b-z"),
            (r"\w+\.\d\s\S\D\W", "a_1.7 xx!", "a_1.7 x1!"),
            (r"\{\}\\\n", "{}\\\n", "{}"),
            ("é.", "éa", "e"),
        ] {
            assert_eq!(matches(expression, yes), Some(true), "{} {}", expression, yes);
            assert_eq!(matches(expression, no), Some(false), "{} {}", expression, no);
        }
    }

    #[test]
    fn what_is_no_expression_has_a_place() {
        for (expression, column) in
            [("a(b", 4), ("ab)", 3), ("*", 2), ("[a", 3), ("[z-a]", 5), (r"\q", 3), ("a{2", 4)]
        {
            let (errno, words) = Grammar::expression(expression).err().unwrap();
            assert_eq!(errno, crate::Errno::EINVAL);
            let place = std::format!("at column {}:", column);
            assert!(words.starts_with(&place), "{}: {}", expression, words);
        }
        let (errno, _) = Grammar::expression("((a{1,1000}){1,1000})").err().unwrap();
        assert_eq!(errno, crate::Errno::EFBIG);
    }
}
