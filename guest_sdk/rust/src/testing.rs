//! A program's tests without a server: a host in memory that answers the calls of the ABI.
//!
//! Its model knows 256 tokens, one for each byte, and token 256, which ends a text. A test says what
//! the model answers ([`Host::model`]), runs its program, and looks at what it did:
//!
//! ```
//! use symphony::{process, testing::Host};
//!
//! let (_, seen) = Host::new().input("Ada").observe(|| {
//!     process::send(format!("hello, {}", process::input_text()))
//! });
//! assert_eq!(seen.text(), "hello, Ada");
//! ```
//!
//! Files, forward passes, tokens, messages, sleeping and children behave as on a server. Time is
//! virtual. All passes under way, and the next token of each generation, are computed at the next
//! wait, as in one step of a server's batch.
//! Constraints hold a text to a regular expression, in which `.`, `[^a]` and escapes are ASCII. What a
//! JSON schema or a Lark grammar means the test says ([`Host::grammar`]); else it allows every text.
//! Queues, grants, and options that are not in every server answer `ENOSYS`.

mod answers;
pub(crate) mod calls;
mod constraints;
mod generations;
mod grammars;
mod passes;

pub use answers::Said;

use crate::http::Response;
use crate::serve::Refusal;
use crate::tool::Answer;
use crate::value::Value;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use std::cell::RefCell;
use std::fmt;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::string::{String, ToString};
use std::vec::Vec;

/// Tokens of the host's model: a byte each, and [`EOS`].
pub const VOCAB_SIZE: u32 = 257;
/// The token that ends a text.
pub const EOS: u32 = 256;

const PAGE_SIZE: usize = 16;

type Model = Rc<dyn Fn(&[u32]) -> Vec<f32>>;
type ChildMain = Rc<dyn Fn(&[u8]) -> (i32, Vec<u8>)>;
type ToolMain = Rc<dyn Fn(&Value) -> Answer>;
type Site = Rc<dyn Fn(&Value) -> Option<Response>>;

/// A host to be: what the program will find.
pub struct Host {
    world: World,
}

/// What a program did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Its messages to the user.
    pub sent: Vec<Vec<u8>>,
    /// Its log: level and line.
    pub log: Vec<(i32, String)>,
    /// The code it gave to `exit`, where it called that.
    pub exit: Option<i32>,
    /// Forward passes that were started before each wait and after the one before; where a wait took
    /// further steps, for a generation's lot, those of each step.
    pub passes_per_wait: Vec<usize>,
    /// Calls of `take`.
    pub takes: usize,
    /// Tickets it cancelled.
    pub cancelled: usize,
    /// Tickets that were neither taken nor cancelled.
    pub tickets_left: usize,
    /// Handles that it left open.
    pub files_left: usize,
    /// Names that are left.
    pub names: Vec<String>,
}

impl Seen {
    /// All messages to the user, joined.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.sent.concat()).into_owned()
    }

    /// The choices of the answer that it has sent as a model ([`crate::serve`]).
    pub fn answers(&self) -> Vec<Said> {
        answers::read(&self.sent.concat()).0
    }

    /// The refusal that it has sent as a model.
    pub fn refusal(&self) -> Option<Refusal> {
        answers::read(&self.sent.concat()).1
    }
}

struct Ticket {
    state: Work,
}

impl Ticket {
    /// Whether a generation keeps this file from other calls.
    fn keeps(&self, kv: i32) -> bool {
        matches!(&self.state, Work::Generation(generation) if generation.keeps(kv))
    }
}

enum Work {
    /// Ready after the next wait.
    Pass(Vec<u8>),
    /// Ready at a time.
    Sleep(i64),
    Ready(Result<Vec<u8>, i32>),
    /// Gives records, a step at each wait.
    Generation(generations::Generation),
    /// Never ready.
    Silence,
}

struct World {
    input: Vec<u8>,
    inbox: VecDeque<Vec<u8>>,
    inbox_open: bool,
    model: Model,
    children: BTreeMap<String, ChildMain>,
    tools: BTreeMap<String, ToolMain>,
    site: Site,
    ended: Vec<(i32, Vec<u8>)>,
    /// Expressions for schemas and grammars.
    grammars: BTreeMap<String, String>,
    constraints: BTreeMap<i32, constraints::Held>,
    /// Where a constraint's text begins in a file.
    texts: BTreeMap<(i32, i32), usize>,
    /// What was wrong last.
    words: String,
    files: BTreeMap<i32, Vec<u32>>,
    names: BTreeMap<String, Vec<u32>>,
    offered: Vec<Vec<u32>>,
    tickets: BTreeMap<i32, Ticket>,
    issued: i32,
    clock: i64,
    noise: u64,
    passes: usize,
    seen: Seen,
}

std::thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// What `exit` unwinds with.
struct Exit;

impl Default for Host {
    fn default() -> Host {
        Host::new()
    }
}

impl Host {
    /// A host without input, whose model answers something that depends on the last tokens alone.
    pub fn new() -> Host {
        let world = World {
            input: Vec::new(),
            inbox: VecDeque::new(),
            inbox_open: false,
            model: Rc::new(passes::babble),
            children: BTreeMap::new(),
            tools: BTreeMap::new(),
            site: Rc::new(|_| None),
            ended: Vec::new(),
            grammars: BTreeMap::new(),
            constraints: BTreeMap::new(),
            texts: BTreeMap::new(),
            words: String::new(),
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            offered: Vec::new(),
            tickets: BTreeMap::new(),
            issued: 0,
            clock: 0,
            noise: 1,
            passes: 0,
            seen: Seen::default(),
        };
        Host { world }
    }

    /// The run's input.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Host {
        self.world.input = input.into();
        self
    }

    /// A message from the user; after the last one the user has closed.
    pub fn message(mut self, message: impl Into<Vec<u8>>) -> Host {
        self.world.inbox.push_back(message.into());
        self
    }

    /// After the last message the user says nothing, and stays.
    pub fn silent_user(mut self) -> Host {
        self.world.inbox_open = true;
        self
    }

    /// The model: the logits of the next token, [`VOCAB_SIZE`] of them, after these tokens.
    pub fn model(mut self, model: impl Fn(&[u32]) -> Vec<f32> + 'static) -> Host {
        self.world.model = Rc::new(model);
        self
    }

    /// What a child with this entry gives for its input: exit code and output.
    pub fn child(mut self, entry: &str, main: impl Fn(&[u8]) -> (i32, Vec<u8>) + 'static) -> Host {
        self.world.children.insert(entry.to_string(), Rc::new(main));
        self
    }

    /// A tool, and what it answers for its arguments.
    pub fn tool(mut self, name: &str, main: impl Fn(&Value) -> Answer + 'static) -> Host {
        self.world.tools.insert(name.to_string(), Rc::new(main));
        self
    }

    /// The texts that a JSON schema or a Lark grammar of the program's stands for here: those that a
    /// regular expression matches.
    pub fn grammar(mut self, source: &str, expression: &str) -> Host {
        self.world.grammars.insert(source.to_string(), expression.to_string());
        self
    }

    /// All of the web: what it answers to a request {method, url, headers, body}; `None`: that is
    /// not allowed.
    pub fn http(mut self, site: impl Fn(&Value) -> Option<Response> + 'static) -> Host {
        self.world.site = Rc::new(site);
        self
    }

    /// Runs a program on this thread and returns what it returned.
    ///
    /// # Panics
    /// When it calls `exit`.
    pub fn run<T>(self, program: impl FnOnce() -> T) -> T {
        let (value, seen) = self.observe(program);
        value.unwrap_or_else(|| panic!("the program called exit({:?})", seen.exit))
    }

    /// Runs a program on this thread; what it returned, unless it called `exit`, and what it did.
    pub fn observe<T>(self, program: impl FnOnce() -> T) -> (Option<T>, Seen) {
        WORLD.with(|world| {
            let before = world.borrow_mut().replace(self.world);
            assert!(before.is_none(), "a host runs on this thread already");
        });
        let outcome = catch_unwind(AssertUnwindSafe(program));
        let world = WORLD.with(|world| world.borrow_mut().take());
        let seen = world.map(World::into_seen).unwrap_or_default();
        match outcome {
            Ok(value) => (Some(value), seen),
            Err(payload) if payload.is::<Exit>() => (None, seen),
            Err(payload) => resume_unwind(payload),
        }
    }
}

impl World {
    fn into_seen(self) -> Seen {
        Seen {
            tickets_left: self.tickets.len(),
            files_left: self.files.len(),
            names: self.names.into_keys().collect(),
            ..self.seen
        }
    }

    fn issue(&mut self, state: Work) -> i32 {
        self.issued += 1;
        self.tickets.insert(self.issued, Ticket { state });
        self.issued
    }

    fn open(&mut self, tokens: Vec<u32>) -> i32 {
        self.issued += 1;
        self.files.insert(self.issued, tokens);
        self.issued
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host")
    }
}
