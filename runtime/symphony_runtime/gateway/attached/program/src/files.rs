//! The client's numbers for KV files. It chooses them, so that it need not wait for a handle.

use std::collections::BTreeMap;
use symphony::{Errno, raw};
use symphony::msgpack::Writer;

/// Files that a run may have numbers for. Of handles it may have fewer: that is the server's limit.
const FILES_MAX: usize = 8_192;
/// Bytes of a label.
const LABEL_BYTES_MAX: usize = 128;

struct File {
    /// The handle, or why there is none: the answer to each call on the file.
    handle: Result<i32, Errno>,
    label: String,
}

#[derive(Default)]
pub struct Files {
    known: BTreeMap<u32, File>,
}

impl Files {
    /// The handle of a file; EBADF: there is none with this number.
    pub fn handle(&self, number: u32) -> Result<i32, Errno> {
        self.known.get(&number).map_or(Err(Errno::EBADF), |file| file.handle)
    }

    /// Whether a number may be used for a new file: else EEXIST or EDQUOT.
    pub fn check_new(&self, number: u32) -> Result<(), Errno> {
        if self.known.contains_key(&number) {
            return Err(Errno::EEXIST);
        }
        if self.known.len() >= FILES_MAX {
            return Err(Errno::EDQUOT);
        }
        Ok(())
    }

    pub fn add(&mut self, number: u32, handle: Result<i32, Errno>) {
        self.known.insert(number, File { handle, label: String::new() });
    }

    pub fn close(&mut self, number: u32) -> Result<(), Errno> {
        let file = self.known.remove(&number).ok_or(Errno::EBADF)?;
        if let Ok(handle) = file.handle {
            // The server knows the handle, and closing one cannot fail.
            let _ = unsafe { raw::kv_close(handle) };
        }
        Ok(())
    }

    /// What a client that takes the run up finds the file by; ENAMETOOLONG.
    pub fn label(&mut self, number: u32, label: &str) -> Result<(), Errno> {
        let file = self.known.get_mut(&number).ok_or(Errno::EBADF)?;
        if label.len() > LABEL_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        file.label = label.into();
        Ok(())
    }

    /// Writes a list of `[number, label]` of the files that are open.
    pub fn list(&self, out: &mut Writer) {
        let open = || self.known.iter().filter(|(_, file)| file.handle.is_ok());
        out.array(open().count());
        for (number, file) in open() {
            out.array(2).uint(u64::from(*number)).str(&file.label);
        }
    }
}
