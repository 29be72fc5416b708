//! What can go wrong: a call's errno, with the call, what it was made with, and where.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;
use core::future::Future;
use core::panic::Location;
use core::pin::Pin;
use core::task::{Context, Poll};

/// How many bytes of a name an error tells.
const NAME_SHOWN: usize = 80;

/// The result of a call.
pub type Result<T> = core::result::Result<T, Error>;

/// An error number of the ABI. A newer server may answer one that this crate has no name for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! errnos {
    ($($name:ident = $number:literal, $words:literal;)*) => {
        impl Errno {
            $(#[doc = $words] pub const $name: Errno = Errno($number);)*

            /// The number's name in the ABI, such as `"ENOENT"`; `"E?"` for an unknown one.
            pub fn name(self) -> &'static str {
                match self.0 { $($number => stringify!($name),)* _ => "E?" }
            }

            /// The number in a few words.
            pub fn words(self) -> &'static str {
                match self.0 { $($number => $words,)* _ => "unknown error" }
            }
        }
    };
}

errnos! {
    ENOENT = 2, "no such name";
    EIO = 5, "the server failed at it";
    EBADF = 9, "no such handle or ticket";
    EAGAIN = 11, "not now";
    ENOMEM = 12, "out of pages or memory";
    EACCES = 13, "not allowed";
    EFAULT = 14, "outside the program's memory";
    EBUSY = 16, "in use";
    EEXIST = 17, "the name is taken";
    EINVAL = 22, "invalid argument";
    EFBIG = 27, "too large";
    ENOSPC = 28, "no room";
    EPIPE = 32, "the other side has closed";
    ENAMETOOLONG = 36, "the name is too long";
    ENOSYS = 38, "not supported by this server";
    ETIMEDOUT = 110, "timed out";
    EDQUOT = 122, "over quota";
    ECANCELED = 125, "cancelled";
}

impl Errno {
    /// The errno with this number.
    pub const fn new(number: i32) -> Errno {
        Errno(number)
    }

    /// The number, positive.
    pub const fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.words())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name(), self.0)
    }
}

/// A call failed: which one, on what, why, and where the program made it.
///
/// ```
/// # symphony::testing::Host::new().run(|| {
/// use symphony::{Errno, KvFile};
///
/// let error = KvFile::open("prefixes/none").unwrap_err();
/// assert_eq!((error.call, error.errno), ("kv_open", Errno::ENOENT));
/// let told = error.to_string();
/// assert!(told.starts_with(r#"kv_open("prefixes/none"): ENOENT (no such name) at "#));
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Error {
    /// The ABI's name of the call, such as `"kv_open"`.
    pub call: &'static str,
    /// Why.
    pub errno: Errno,
    operand: Option<Box<str>>,
    location: &'static Location<'static>,
}

impl Error {
    /// An error of the named call, made where this is called.
    #[track_caller]
    pub fn new(call: &'static str, errno: Errno) -> Error {
        Error { call, errno, operand: None, location: Location::caller() }
    }

    /// What the call was made with, where the error says it: a name in quotes, or numbers.
    pub fn operand(&self) -> Option<&str> {
        self.operand.as_deref()
    }

    /// The line of the program that made the call.
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }

    pub(crate) fn with_operand(mut self, operand: impl Into<Box<str>>) -> Error {
        self.operand = Some(operand.into());
        self
    }

    pub(crate) fn at(mut self, location: &'static Location<'static>) -> Error {
        self.location = location;
        self
    }
}

/// Errors are equal when the same call failed for the same reason, wherever it was made.
impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        (self.call, self.errno) == (other.call, other.errno)
    }
}

impl Eq for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call)?;
        if let Some(operand) = &self.operand {
            write!(f, "({})", operand)?;
        }
        let (file, line) = (self.location.file(), self.location.line());
        write!(f, ": {} at {}:{}", self.errno, file, line)
    }
}

#[cfg(feature = "std")]
impl std::error::Error for Error {}

/// Turns a call's result into ours: negative is minus an errno.
#[track_caller]
pub(crate) fn check(call: &'static str, result: i32) -> Result<u32> {
    if result < 0 {
        Err(Error::new(call, Errno::new(result.wrapping_neg())))
    } else {
        Ok(result as u32)
    }
}

/// The same, of a call on a name, which the error tells.
#[track_caller]
pub(crate) fn check_named(call: &'static str, name: &str, result: i32) -> Result<u32> {
    if result < 0 {
        let error = Error::new(call, Errno::new(result.wrapping_neg()));
        return Err(error.with_operand(quoted(name)));
    }
    Ok(result as u32)
}

/// A name as an operand: in quotes, and cut where it is long.
pub(crate) fn quoted(name: &str) -> String {
    let mut end = name.len().min(NAME_SHOWN);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let rest = if end < name.len() { "..." } else { "" };
    ["\"", &name[..end], rest, "\""].concat()
}

/// A future whose errors say where the program called for it, which the compiler cannot tell an async
/// function. It is boxed, so that each use of it in a program is not a copy of its code.
pub(crate) struct Located<'a, T> {
    location: &'static Location<'static>,
    future: Pin<Box<dyn Future<Output = Result<T>> + 'a>>,
}

impl<'a, T> Located<'a, T> {
    pub(crate) fn new(
        location: &'static Location<'static>,
        future: impl Future<Output = Result<T>> + 'a,
    ) -> Located<'a, T> {
        Located { location, future: Box::pin(future) }
    }
}

impl<T> Future for Located<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let location = self.location;
        self.future.as_mut().poll(context).map(|ended| ended.map_err(|error| error.at(location)))
    }
}

/// Runs an `(ptr, cap)` call until its output fits; `call` gets the room and returns the length.
#[track_caller]
pub(crate) fn filled<T: Copy + Default>(
    name: &'static str,
    room: usize,
    mut call: impl FnMut(*mut T, usize) -> i32,
) -> Result<alloc::vec::Vec<T>> {
    let mut out = alloc::vec![T::default(); room];
    loop {
        let length = check(name, call(out.as_mut_ptr(), out.len()))? as usize;
        if length <= out.len() {
            out.truncate(length);
            return Ok(out);
        }
        out.resize(length, T::default());
    }
}
