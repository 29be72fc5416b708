//! What can go wrong: a call's errno, with the name of the call.

use core::fmt;

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

/// A call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// The ABI's name of the call, such as `"kv_open"`.
    pub call: &'static str,
    /// Why.
    pub errno: Errno,
}

impl Error {
    /// An error of the named call.
    pub const fn new(call: &'static str, errno: Errno) -> Error {
        Error { call, errno }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.errno)
    }
}

#[cfg(feature = "std")]
impl std::error::Error for Error {}

/// Turns a call's result into ours: negative is minus an errno.
pub(crate) fn check(call: &'static str, result: i32) -> Result<u32> {
    if result < 0 {
        Err(Error::new(call, Errno::new(result.wrapping_neg())))
    } else {
        Ok(result as u32)
    }
}

/// Runs an `(ptr, cap)` call until its output fits; `call` gets the room and returns the length.
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
