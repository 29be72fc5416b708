//! HTTP, as far as the operator lets the tenant: nothing, where nothing is allowed (`EACCES`).
//!
//! ```
//! # use symphony::{http::Response, testing::Host};
//! # let site = |_: &_| Some(Response { status: 200, headers: vec![], body: b"rain".to_vec() });
//! # Host::new().http(site).run(|| symphony::block_on(async {
//! use symphony::http;
//!
//! let answer = http::get("https://weather.example.com/ghent").header("accept", "text/plain").send();
//! let answer = answer.await?;
//! assert!(answer.ok() && answer.text() == "rain");
//! # symphony::Result::Ok(()) }).unwrap());
//! ```
//!
//! The server makes the request, follows redirects as far as they are allowed, and checks certificates.
//! A status such as 404 is an answer; an error is where there is none. Several requests may be under
//! way at once.

use crate::executor::Ticket;
use crate::msgpack::{self, Writer};
use crate::raw;
use crate::value::Value;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// A request to be.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked until send()"]
pub struct Request<'a> {
    method: &'a str,
    url: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    body: &'a [u8],
    time: Option<Duration>,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Its headers; names in lower case, several of one name joined.
    pub headers: Vec<(String, String)>,
    /// Its body, as it came.
    pub body: Vec<u8>,
}

/// Asks for what is there.
pub fn get(url: &str) -> Request<'_> {
    Request { method: "GET", url, headers: Vec::new(), body: &[], time: None }
}

/// Hands something over.
pub fn post<'a>(url: &'a str, body: &'a [u8]) -> Request<'a> {
    get(url).method("POST").body(body)
}

impl<'a> Request<'a> {
    /// Another method, in capitals.
    pub fn method(mut self, method: &'a str) -> Request<'a> {
        self.method = method;
        self
    }

    /// One header more. Those that say where a request ends and whom it is for are the server's.
    pub fn header(mut self, name: &'a str, value: &'a str) -> Request<'a> {
        self.headers.push((name, value));
        self
    }

    /// What is handed over.
    pub fn body(mut self, body: &'a [u8]) -> Request<'a> {
        self.body = body;
        self
    }

    /// How long all of it may take: 30 s where nothing is said, 120 s at most.
    pub fn within(mut self, time: Duration) -> Request<'a> {
        self.time = Some(time);
        self
    }

    /// Asks. Dropping the ticket ends the request.
    #[track_caller]
    pub fn send(self) -> Ticket<Response> {
        let mut out = Writer::new();
        out.map(4 + usize::from(self.time.is_some()));
        out.str("method").str(self.method).str("url").str(self.url);
        out.str("body").bin(self.body).str("headers").map(self.headers.len());
        for (name, value) in self.headers {
            out.str(name).str(value);
        }
        if let Some(time) = self.time {
            out.str("timeout_ms").uint(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1));
        }
        let result = unsafe { raw::http(out.bytes().as_ptr(), out.bytes().len()) };
        Ticket::named("http", self.url, result, response)
    }
}

impl Response {
    /// Whether the status says that it went well: 200 to 299.
    pub fn ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// A header's value, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body as text; bytes that are no UTF-8 become U+FFFD.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn response(bytes: &[u8], _: usize) -> Option<Response> {
    let value = msgpack::decode(bytes).ok()?;
    let text = |value: &Value| value.as_str().map(String::from);
    let headers = value.get("headers")?.as_map()?.iter();
    Some(Response {
        status: u16::try_from(value.get("status")?.as_u64()?).ok()?,
        headers: headers.map(|(k, v)| Some((text(k)?, text(v)?))).collect::<Option<_>>()?,
        body: value.get("body")?.as_bytes()?.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Host;
    use crate::{block_on, Errno, Error};
    use alloc::vec;

    fn told(request: &Value) -> Option<Response> {
        let text = |key| request.get(key).and_then(Value::as_str).unwrap_or_default();
        let asked = alloc::format!("{} {}", text("method"), text("url"));
        let header = request.get("headers")?.get("x-a")?.as_str()?.into();
        let body = [asked.as_bytes(), request.get("body")?.as_bytes()?].concat();
        Some(Response { status: 404, headers: vec![("x-b".into(), header)], body })
    }

    #[test]
    fn a_request_and_its_answer() {
        let answer = Host::new().http(told).run(|| {
            let request = post("http://a/", b" body").method("PUT").header("x-a", "1");
            block_on(request.within(Duration::from_secs(1)).send())
        });
        let answer = answer.unwrap();
        assert!(!answer.ok());
        assert_eq!((answer.header("x-b"), answer.header("x-c")), (Some("1"), None));
        assert_eq!(answer.text(), "PUT http://a/ body");
    }

    #[test]
    fn what_is_not_allowed_is_an_error() {
        let failed = Err(Error::new("http", Errno::EACCES));
        assert_eq!(Host::new().http(told).run(|| get("http://a").send().block()), failed);
        assert_eq!(Host::new().run(|| get("http://a").send().block()), failed);
    }
}
