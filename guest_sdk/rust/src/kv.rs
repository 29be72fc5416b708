//! KV files: the model's memory of a text, as a thing to open, fork, cut and name.

use crate::decode::Generation;
use crate::error::{check, check_named, filled, Errno, Error, Result};
use crate::executor::Ticket;
use crate::msgpack;
use crate::pred::Pred;
use crate::raw;
use crate::sampling::Sampling;
use crate::stream::Stream;
use crate::value::Value;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::{BitOr, Range};

/// What a handle may be used for. No call adds a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights(u32);

impl Rights {
    /// Forward passes, fork, extract, and reading.
    pub const READ: Rights = Rights(1);
    /// Forward passes that are kept, and append.
    pub const APPEND: Rights = Rights(2);
    /// Rolling back.
    pub const TRUNCATE: Rights = Rights(4);
    /// Naming.
    pub const SAVE: Rights = Rights(8);
    /// Giving to a child or the parent.
    pub const GRANT: Rights = Rights(16);
    /// All of them.
    pub const ALL: Rights = Rights(31);

    /// The rights with these bits.
    pub const fn from_bits(bits: u32) -> Rights {
        Rights(bits)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` are among them.
    pub const fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Rights {
    type Output = Rights;

    fn bitor(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }
}

/// What to do about a name that is taken, and who may see the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Save(u32);

impl Save {
    /// A new, private name, gone when the server restarts.
    pub const NEW: Save = Save(0);
    /// The name may be taken.
    pub const REPLACE: Save = Save(1);
    /// It survives a restart of the server.
    pub const DURABLE: Save = Save(2);
    /// Other tenants may open it.
    pub const PUBLIC: Save = Save(4);
}

impl BitOr for Save {
    type Output = Save;

    fn bitor(self, other: Save) -> Save {
        Save(self.0 | other.0)
    }
}

/// A wish about where a file's pages live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing special.
    Normal,
    /// Keep it near for this many milliseconds.
    Keep(u32),
    /// It is needed soon.
    WillNeed,
    /// It is not needed soon.
    DoNotNeed,
    /// 0 to 7: the higher, the longer it stays.
    Priority(u8),
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Entries.
    pub len: u32,
    /// Pages it refers to.
    pub pages: u32,
    /// How many of them it shares with other files.
    pub shared: u32,
    /// Where they are, such as `"device"`.
    pub tier: String,
    /// What this handle may be used for.
    pub rights: Rights,
    /// Its name, where it has one.
    pub path: Option<String>,
    /// When [`Advice::Keep`] ends, or else the name that it was opened from, in milliseconds since
    /// 1970 (as [`unix_ms`](crate::process::unix_ms) counts); `None` for never.
    pub expires_ms: Option<u64>,
    /// Entries that came from the prefix cache: by [`KvFile::matching`], or shared by
    /// [`Pred::share`](crate::pred::Pred::share).
    pub cached: u32,
}

/// A named file in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub path: String,
    /// Entries.
    pub len: u32,
    /// Pages it refers to.
    pub pages: u32,
    /// Where they are.
    pub tier: String,
    /// Whether it survives a restart of the server.
    pub durable: bool,
    /// Whether other tenants may read it, as `public/<tenant>/<path>`.
    pub public: bool,
    /// When it goes, in milliseconds since 1970, where it does.
    pub expires_ms: Option<u64>,
}

/// A KV file: an ordered list of entries (token, position, and K and V of every layer). Dropping it
/// closes the handle.
///
/// `create`, `fork`, `extract` and `append` answer before the server has done the work; where it
/// fails, the first call that needs the content says so. Calls on one file take effect in the order
/// in which they were made.
///
/// ```
/// # symphony::testing::Host::new().run(|| symphony::block_on(async {
/// use symphony::{model, kv::Save, KvFile};
///
/// let prefix = KvFile::create()?;
/// prefix.prefill(&model::tokenize("def main")?).await?;
/// prefix.save("prefixes/main", Save::NEW)?;
///
/// let kv = KvFile::open("prefixes/main")?; // a private copy-on-write view
/// let branch = kv.fork()?;
/// let next = branch.pred(&model::tokenize("():")?).argmax().await?;
/// assert!(next.logprob <= 0.0);
/// assert_eq!((kv.len()?, branch.len()?), (8, 11));
/// KvFile::remove("prefixes/main")?;
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct KvFile {
    handle: i32,
}

impl KvFile {
    /// An empty file without a name.
    #[track_caller]
    pub fn create() -> Result<KvFile> {
        KvFile::of("kv_create", unsafe { raw::kv_create() })
    }

    /// A private view of a named file's content as it is now, with all rights.
    #[track_caller]
    pub fn open(path: &str) -> Result<KvFile> {
        KvFile::open_with(path, Rights::ALL)
    }

    /// A private view of a named file's content as it is now.
    #[track_caller]
    pub fn open_with(path: &str, rights: Rights) -> Result<KvFile> {
        let result = unsafe { raw::kv_open(path.as_ptr(), path.len(), rights.bits() as i32) };
        check_named("kv_open", path, result)?;
        Ok(KvFile { handle: result })
    }

    /// The file that was granted to this program under that name.
    #[track_caller]
    pub fn granted(name: &str) -> Result<KvFile> {
        let result = unsafe { raw::kv_granted(name.as_ptr(), name.len()) };
        check_named("kv_granted", name, result)?;
        Ok(KvFile { handle: result })
    }

    /// The file behind a handle that this program owns.
    pub fn from_handle(handle: i32) -> KvFile {
        KvFile { handle }
    }

    /// The handle, without closing it.
    pub fn into_handle(self) -> i32 {
        let handle = self.handle;
        core::mem::forget(self);
        handle
    }

    /// The handle; it stays this file's.
    pub fn handle(&self) -> i32 {
        self.handle
    }

    #[track_caller]
    fn of(call: &'static str, result: i32) -> Result<KvFile> {
        check(call, result)?;
        Ok(KvFile { handle: result })
    }

    /// Begins a forward pass over tokens that come after the entries so far.
    pub fn pred<'a>(&'a self, tokens: &'a [u32]) -> Pred<'a> {
        Pred::new(self, tokens)
    }

    /// Appends tokens: a pass that nothing is asked of. See [`Pred`] for one with options.
    #[track_caller]
    pub fn prefill(&self, tokens: &[u32]) -> Ticket<()> {
        self.pred(tokens).prefill()
    }

    /// Starts a text behind the entries so far and `prompt`: the server samples, appends and goes on
    /// by itself, and the text is there piece by piece. An empty prompt is `EINVAL`.
    #[track_caller]
    pub fn generate(&self, prompt: &[u32], sampling: &Sampling) -> Generation<'_> {
        Generation::new(self, prompt, sampling)
    }

    /// Starts the same as a stream of tokens, for a program that looks at tokens and not at text:
    /// the texts of [`Sampling::stop`] do not end it.
    #[track_caller]
    pub fn stream(&self, prompt: &[u32], sampling: &Sampling) -> Stream {
        Stream::new(self, prompt, sampling)
    }

    /// A copy that shares pages until either side writes.
    #[track_caller]
    pub fn fork(&self) -> Result<KvFile> {
        KvFile::of("kv_fork", unsafe { raw::kv_fork(self.handle) })
    }

    /// A new file of the entries in the ranges; they keep their positions.
    #[track_caller]
    pub fn extract(&self, ranges: &[Range<u32>]) -> Result<KvFile> {
        let pairs: Vec<[u32; 2]> = ranges.iter().map(|range| [range.start, range.end]).collect();
        let result = unsafe { raw::kv_extract(self.handle, pairs.as_ptr().cast(), pairs.len()) };
        KvFile::of("kv_extract", result)
    }

    /// Puts entries of another file at the end of this one.
    #[track_caller]
    pub fn append(&self, source: &KvFile, entries: Range<u32>) -> Result<()> {
        let result =
            unsafe { raw::kv_append(self.handle, source.handle, entries.start, entries.end) };
        check("kv_append", result).map(drop)
    }

    /// Rolls back to `len` entries.
    #[track_caller]
    pub fn truncate(&self, len: u32) -> Result<()> {
        check("kv_truncate", unsafe { raw::kv_truncate(self.handle, len) }).map(drop)
    }

    /// The number of entries.
    #[track_caller]
    #[allow(clippy::len_without_is_empty)] // asking costs a call, as its name should show
    pub fn len(&self) -> Result<u32> {
        check("kv_len", unsafe { raw::kv_len(self.handle) })
    }

    /// What is known of the file.
    #[track_caller]
    pub fn stat(&self) -> Result<Stat> {
        let bytes = filled("kv_stat", 256, |p, cap| unsafe { raw::kv_stat(self.handle, p, cap) })?;
        read_stat(&bytes).ok_or_else(|| Error::new("kv_stat", Errno::EIO))
    }

    /// The tokens of a range of entries.
    #[track_caller]
    pub fn tokens(&self, entries: Range<u32>) -> Result<Vec<u32>> {
        let count = entries.len();
        let mut out = alloc::vec![0; count];
        let result = unsafe { raw::kv_tokens(self.handle, entries.start, count, out.as_mut_ptr()) };
        check("kv_tokens", result)?;
        Ok(out)
    }

    /// Names what the file holds now; what it gets later is not the name's.
    #[track_caller]
    pub fn save(&self, path: &str, how: Save) -> Result<()> {
        let result = unsafe { raw::kv_save(self.handle, path.as_ptr(), path.len(), how.0 as i32) };
        check_named("kv_save", path, result).map(drop)
    }

    /// Takes a name away; files that were opened by it stay as they are.
    #[track_caller]
    pub fn remove(path: &str) -> Result<()> {
        let result = unsafe { raw::kv_remove(path.as_ptr(), path.len()) };
        check_named("kv_remove", path, result).map(drop)
    }

    /// The named files whose names begin with `prefix`; `EFBIG` where there are too many for one
    /// listing (see [`KvFile::list_after`]). Below `public/<tenant>/` they are what that tenant
    /// publishes.
    #[track_caller]
    pub fn list(prefix: &str) -> Result<Vec<Listed>> {
        let bytes = filled("kv_list", 1024, |out, cap| unsafe {
            raw::kv_list(prefix.as_ptr(), prefix.len(), out, cap)
        })?;
        read_listing(&bytes).ok_or_else(|| Error::new("kv_list", Errno::EIO))
    }

    /// At most `max` of the named files whose names begin with `prefix`, in order, from the first
    /// one behind the path `after`.
    #[track_caller]
    pub fn list_after(prefix: &str, after: &str, max: usize) -> Result<Vec<Listed>> {
        let bytes = filled("kv_list_after", 1024, |out, cap| unsafe {
            raw::kv_list_after(
                prefix.as_ptr(),
                prefix.len(),
                after.as_ptr(),
                after.len(),
                max,
                out,
                cap,
            )
        })?;
        read_listing(&bytes).ok_or_else(|| Error::new("kv_list_after", Errno::EIO))
    }

    /// Offers what the file holds now, in whole pages, to the tenant's other runs, which find it with
    /// [`KvFile::matching`]; returns how many entries they can find. A wish: the server keeps it as
    /// long as it has room. Only for files whose entries were each computed from exactly those
    /// before (`EINVAL`). Waits for the file's passes that are under way.
    #[track_caller]
    pub fn offer(&self) -> Result<u32> {
        check("kv_offer", unsafe { raw::kv_offer(self.handle) })
    }

    /// A file that shares the longest prefix of `tokens` that one of the tenant's runs has offered,
    /// where there is one. At least one token is left to compute.
    ///
    /// ```
    /// # symphony::testing::Host::new().run(|| symphony::block_on(async {
    /// use symphony::{model, KvFile};
    ///
    /// async fn prefill(tokens: &[u32]) -> symphony::Result<KvFile> {
    ///     let kv = match KvFile::matching(tokens)? {
    ///         Some(known) => known,
    ///         None => KvFile::create()?,
    ///     };
    ///     let known = kv.len()? as usize;
    ///     kv.prefill(&tokens[known..]).await?;
    ///     kv.offer()?;
    ///     Ok(kv)
    /// }
    ///
    /// prefill(&model::tokenize("You are a careful editor. First text.")?).await?;
    /// let tokens = model::tokenize("You are a careful editor. Second text.")?;
    /// assert_eq!(KvFile::matching(&tokens)?.unwrap().len()?, 16);
    /// # symphony::Result::Ok(()) }).unwrap());
    /// ```
    #[track_caller]
    pub fn matching(tokens: &[u32]) -> Result<Option<KvFile>> {
        let result = unsafe { raw::kv_match(tokens.as_ptr(), tokens.len()) };
        match KvFile::of("kv_match", result) {
            Err(error) if error.errno == Errno::ENOENT => Ok(None),
            found => found.map(Some),
        }
    }

    /// Wishes where the file's pages live.
    #[track_caller]
    pub fn advise(&self, advice: Advice) -> Result<()> {
        let (hint, argument) = match advice {
            Advice::Normal => (0, 0),
            Advice::Keep(ms) => (1, i64::from(ms)),
            Advice::WillNeed => (2, 0),
            Advice::DoNotNeed => (3, 0),
            Advice::Priority(priority) => (4, i64::from(priority)),
        };
        check("kv_advise", unsafe { raw::kv_advise(self.handle, hint, argument) }).map(drop)
    }

    /// Gives a child, or the parent ([`crate::process::PARENT`]), a handle of its own with at most
    /// these rights.
    #[track_caller]
    pub fn grant(&self, pid: u32, rights: Rights, name: &str) -> Result<()> {
        let (bits, pid) = (rights.bits() as i32, pid as i32);
        let result = unsafe { raw::kv_grant(self.handle, pid, bits, name.as_ptr(), name.len()) };
        check_named("kv_grant", name, result).map(drop)
    }

    /// Closes the handle, and says whether it was one; dropping the file does the same.
    #[track_caller]
    pub fn close(self) -> Result<()> {
        check("kv_close", unsafe { raw::kv_close(self.into_handle()) }).map(drop)
    }
}

impl Drop for KvFile {
    fn drop(&mut self) {
        // An errno would say that the handle is closed.
        let _ = unsafe { raw::kv_close(self.handle) };
    }
}

fn read_stat(bytes: &[u8]) -> Option<Stat> {
    let value = msgpack::decode(bytes).ok()?;
    let number = |key| value.get(key).and_then(Value::as_u32);
    let named = value.get("path").and_then(Value::as_str).filter(|path| !path.is_empty());
    Some(Stat {
        len: number("len")?,
        pages: number("pages")?,
        shared: number("shared")?,
        tier: String::from(value.get("tier")?.as_str()?),
        rights: Rights(number("rights")?),
        path: named.map(String::from),
        expires_ms: value.get("expires_ms").and_then(Value::as_u64).filter(|ms| *ms > 0),
        cached: number("cached").unwrap_or(0),
    })
}

fn read_listing(bytes: &[u8]) -> Option<Vec<Listed>> {
    let value = msgpack::decode(bytes).ok()?;
    value.as_array()?.iter().map(read_listed).collect()
}

fn read_listed(value: &Value) -> Option<Listed> {
    let number = |key| value.get(key).and_then(Value::as_u32);
    let text = |key| value.get(key).and_then(Value::as_str).map(String::from);
    Some(Listed {
        path: text("path")?,
        len: number("len")?,
        pages: number("pages")?,
        tier: text("tier")?,
        durable: value.get("durable")?.as_bool()?,
        public: value.get("public").and_then(Value::as_bool).unwrap_or(false),
        expires_ms: value.get("expires_ms").and_then(Value::as_u64).filter(|ms| *ms > 0),
    })
}
