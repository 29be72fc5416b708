//! Why a request cannot be answered, as its client is told.

use symphony::{Errno, Error};

pub struct Failure {
    pub status: u32,
    pub code: &'static str,
    pub param: &'static str,
    pub message: String,
}

impl Failure {
    pub fn refused(code: &'static str, param: &'static str, message: String) -> Failure {
        Failure { status: 400, code, param, message }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (status, code, words) = match (error.call, error.errno) {
            ("chat", Errno::ENOSYS) => (400, "no_chat_template", "the model has no chat template"),
            ("chat", Errno::EINVAL) => {
                (400, "invalid_messages", "the model's chat template refuses these messages")
            }
            ("chat", Errno::EFBIG) | ("tokenize", Errno::EFBIG) => {
                (400, "string_above_max_length", "the prompt is too long a text")
            }
            (_, Errno::EDQUOT) => (429, "over_quota", "a limit of the tenant's KV is used up"),
            (_, Errno::EAGAIN) => (503, "busy", "the server is busy now"),
            (_, Errno::ENOMEM) => (503, "out_of_memory", "there are no free KV pages now"),
            (_, Errno::ENOSYS) => (400, "unsupported", "this server does not do that"),
            (_, Errno::EFBIG) => {
                (400, "context_length_exceeded", "the request is longer than the model's context")
            }
            _ => (500, "internal", "the server failed at it"),
        };
        let message = format!("{} ({})", words, error);
        Failure { status, code, param: "", message }
    }
}
