//! How a program begins and ends.

use crate::executor::block_on;
use crate::input::{Input, InputError};
use crate::json;
use crate::process::{self, Level};
use crate::serve::Refusal;
use crate::value::Value;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;
use core::future::Future;

/// What an entry may take: the run's input.
pub trait FromInput: Sized {
    /// Reads it from the input's bytes. The error's words end in the run's log.
    fn from_input(input: Vec<u8>) -> Result<Self, InputError>;
}

/// The parameters of the run.
impl FromInput for Input {
    fn from_input(input: Vec<u8>) -> Result<Input, InputError> {
        Input::parse(&input)
    }
}

/// The bytes as they are.
impl FromInput for Vec<u8> {
    fn from_input(input: Vec<u8>) -> Result<Vec<u8>, InputError> {
        Ok(input)
    }
}

/// The input as text; bytes that are no UTF-8 become U+FFFD.
impl FromInput for String {
    fn from_input(input: Vec<u8>) -> Result<String, InputError> {
        Ok(String::from_utf8_lossy(&input).into_owned())
    }
}

/// The input, which has to be JSON.
impl FromInput for Value {
    fn from_input(input: Vec<u8>) -> Result<Value, InputError> {
        json::decode(&input).map_err(|error| InputError::new(format!("the input: {}", error)))
    }
}

/// What an entry may return: nothing, an exit code, a value, which is sent as the run's last message,
/// or a `Result` of these. An error is written to the log, and the exit code is 1. A
/// [`Refusal`] is sent to the client of a program that serves as a model.
pub trait Outcome {
    /// The exit code.
    fn code(self) -> i32;
}

impl Outcome for () {
    fn code(self) -> i32 {
        0
    }
}

impl Outcome for i32 {
    fn code(self) -> i32 {
        self
    }
}

macro_rules! last_message {
    ($($type:ty: $bytes:expr;)*) => {$(
        impl Outcome for $type {
            fn code(self) -> i32 {
                let bytes: fn($type) -> Vec<u8> = $bytes;
                process::send(bytes(self)).code()
            }
        }
    )*};
}

last_message! {
    Vec<u8>: |bytes| bytes;
    &str: |text| text.as_bytes().to_vec();
    String: String::into_bytes;
    Value: |value| json::encode(&value).into_bytes();
    json::Object: |object| object.finish().into_bytes();
}

impl<T: Outcome, E: Display> Outcome for Result<T, E> {
    fn code(self) -> i32 {
        match self {
            Ok(outcome) => outcome.code(),
            Err(error) => {
                process::log(Level::Error, format!("{}", error));
                1
            }
        }
    }
}

/// A function that an entry runs: `Given` is what it takes.
pub trait Program<Given> {
    /// What it returns.
    type Output;

    /// Runs it on the run's input.
    fn run(self) -> Result<Self::Output, InputError>;
}

impl<F: FnOnce() -> T, T> Program<()> for F {
    type Output = T;

    fn run(self) -> Result<T, InputError> {
        Ok(self())
    }
}

impl<F: FnOnce(I) -> T, I: FromInput, T> Program<(I,)> for F {
    type Output = T;

    fn run(self) -> Result<T, InputError> {
        Ok(self(I::from_input(process::input())?))
    }
}

/// A request is refused: the client gets the words (see [`crate::serve`]).
impl<T: Outcome> Outcome for Result<T, Refusal> {
    fn code(self) -> i32 {
        match self {
            Ok(outcome) => outcome.code(),
            Err(refusal) => refusal.end(),
        }
    }
}

/// Runs an entry to its end.
pub fn run<G, P: Program<G>>(program: P) -> i32
where
    P::Output: Outcome,
{
    log_panics();
    match program.run() {
        Ok(outcome) => outcome.code(),
        Err(error) => error.end(),
    }
}

/// Runs an async entry to its end.
pub fn run_async<G, P: Program<G>>(program: P) -> i32
where
    P::Output: Future,
    <P::Output as Future>::Output: Outcome,
{
    log_panics();
    match program.run() {
        Ok(future) => block_on(future).code(),
        Err(error) => error.end(),
    }
}

/// Sends panic messages to the run's log; the entry macros call it.
pub fn log_panics() {
    // On other machines a panic belongs to the test that runs the program.
    #[cfg(all(feature = "std", target_arch = "wasm32"))]
    std::panic::set_hook(std::boxed::Box::new(|info| {
        process::log(Level::Error, alloc::format!("{}", info));
    }));
}

/// Makes a function an entry of the program, for children: `entry!("name", f)`, or `entry!("name",
/// async f)` for an async one. It takes and returns what an entry may ([`FromInput`], [`Outcome`]). See
/// [`process::Child::entry`](crate::process::Child::entry).
///
/// The entry of a run is `"lip_main"`, which the attribute `#[symphony::main]` makes of a function.
///
/// ```
/// # mod program {
/// use symphony::{process, Input, InputError};
///
/// symphony::entry!("shout", shout);
///
/// fn shout(input: Input) -> Result<String, InputError> {
///     Ok(input.text("prompt")?.to_uppercase()) // the last message of the child
/// }
/// # pub fn it(input: Input) -> Result<String, InputError> { shout(input) }
/// # }
/// # let input = symphony::Input::parse(b"hello").unwrap();
/// # assert_eq!(program::it(input).unwrap(), "HELLO");
/// ```
#[macro_export]
macro_rules! entry {
    ($name:literal, async $run:expr) => {
        $crate::entry!(@export $name, $crate::__private::run_async($run));
    };
    ($name:literal, $run:expr) => {
        $crate::entry!(@export $name, $crate::__private::run($run));
    };
    (@export $name:literal, $ran:expr) => {
        const _: () = {
            // Natively the name would be the test's own symbol.
            #[cfg_attr(target_arch = "wasm32", export_name = $name)]
            #[allow(dead_code)]
            extern "C" fn entry() -> i32 {
                $ran
            }
        };
    };
}

/// Writes a line to the run's log, formatted as by `format!`: `log!(Info, "{} tokens", n)`.
#[macro_export]
macro_rules! log {
    ($level:ident, $($format:tt)+) => {
        $crate::process::log(
            $crate::process::Level::$level,
            $crate::__private::format!($($format)+),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Host, Seen};
    use crate::Result;
    use alloc::boxed::Box;

    fn play(input: &str, program: impl FnOnce() -> i32) -> (i32, Seen) {
        let (code, seen) = Host::new().input(input).observe(program);
        (code.unwrap(), seen)
    }

    #[test]
    fn what_an_entry_returns_is_the_last_message() {
        async fn told(input: Input) -> Result<Value> {
            process::send("first")?;
            Ok(Value::object([("n", Value::Int(input.whole("n", 1, 0..=9).unwrap() as i64))]))
        }
        let (code, seen) = play(r#"{"n": 3}"#, || run_async(told));
        assert_eq!((code, seen.text().as_str()), (0, r#"first{"n":3}"#));
        assert_eq!(play("a", || run(|text: String| text + "b")).1.text(), "ab");
        assert_eq!(play("a", || run(|bytes: Vec<u8>| bytes)).1.text(), "a");
        assert_eq!(play("", || run(|| json::Object::new().whole("a", 1))).1.text(), r#"{"a":1}"#);
        let (code, seen) = play("", || run(|| 7));
        assert_eq!((code, seen.sent.len()), (7, 0));
    }

    #[test]
    fn what_an_entry_fails_with_is_a_line_of_the_log() {
        fn fails() -> core::result::Result<(), Box<dyn std::error::Error>> {
            Err("no luck".into())
        }
        let (code, seen) = play("", || run(fails));
        assert_eq!((code, seen.log[0].1.as_str()), (1, "no luck"));
        let (code, seen) = play("{oh", || run(|_: Input| ()));
        assert!(code == 1 && seen.log[0].1.contains("at byte"), "{:?}", seen.log);
        let (code, seen) = play("oh", || run(|_: Value| ()));
        assert!(code == 1 && seen.log[0].1.starts_with("the input: "), "{:?}", seen.log);
    }
}
