//! State of the one instance: plain on Wasm, which has one thread; a thread's own elsewhere, so
//! that tests run side by side.

#[cfg(target_arch = "wasm32")]
pub(crate) struct Local<T>(pub(crate) T);

// An instance has one thread: the ABI refuses modules that use threads.
#[cfg(target_arch = "wasm32")]
unsafe impl<T> Sync for Local<T> {}

#[cfg(target_arch = "wasm32")]
impl<T> Local<T> {
    pub(crate) fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.0)
    }
}

macro_rules! local {
    (static $name:ident: $type:ty = $start:expr;) => {
        #[cfg(target_arch = "wasm32")]
        static $name: crate::local::Local<$type> = crate::local::Local($start);
        #[cfg(not(target_arch = "wasm32"))]
        std::thread_local! { static $name: $type = $start; }
    };
}

pub(crate) use local;
