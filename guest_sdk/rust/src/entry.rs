//! How a program begins and ends.

use crate::process::{self, Level};
use core::fmt::Display;

/// What a program's function may return: nothing, an exit code, or a `Result` of either. An error
/// is written to the log, and the exit code is 1.
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

impl<T: Outcome, E: Display> Outcome for Result<T, E> {
    fn code(self) -> i32 {
        match self {
            Ok(outcome) => outcome.code(),
            Err(error) => {
                process::log(Level::Error, alloc::format!("{}", error));
                1
            }
        }
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

/// Makes a function the program's entry: `main!(f)` for a plain function, `main!(async f)` for an
/// async one. It returns what [`Outcome`] allows, and a panic's message goes to the run's log.
///
/// ```
/// # mod program {
/// use symphony::process;
///
/// symphony::main!(async run);
///
/// async fn run() -> symphony::Result<()> {
///     process::send("hello")
/// }
/// # }
/// # let (_, seen) = symphony::testing::Host::new().observe(|| symphony::block_on(async {
/// #     symphony::process::send("hello").unwrap();
/// # }));
/// # assert_eq!(seen.text(), "hello");
/// ```
#[macro_export]
macro_rules! main {
    (async $run:expr) => {
        $crate::entry!("lip_main", async $run);
    };
    ($run:expr) => {
        $crate::entry!("lip_main", $run);
    };
}

/// Makes a function a further entry, for children: `entry!("name", f)` or `entry!("name", async f)`.
/// See [`process::Child::entry`](crate::process::Child::entry).
#[macro_export]
macro_rules! entry {
    ($name:literal, async $run:expr) => {
        $crate::entry!($name, || $crate::block_on($run()));
    };
    ($name:literal, $run:expr) => {
        const _: () = {
            // Natively the name would be the test's own symbol.
            #[cfg_attr(target_arch = "wasm32", export_name = $name)]
            #[allow(dead_code)]
            extern "C" fn entry() -> i32 {
                $crate::log_panics();
                $crate::Outcome::code(($run)())
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
