//! The documents, the files that hold some of them, and the statistics that say which.

use std::rc::{Rc, Weak};
use symphony::{model, KvFile, Result, Ticket};

/// What a question counts after one more: half after seven hundred.
const FADING: f64 = 0.999;

pub struct Library {
    documents: Vec<Document>,
    /// Of all documents that are kept.
    keep_tokens: usize,
    /// Of all that are kept or in use.
    hold_tokens: usize,
    kept_tokens: usize,
    questions: i32,
    computed: usize,
    found: usize,
}

struct Document {
    /// Whole pages, so that files that are appended to one another share them.
    tokens: Vec<u32>,
    /// Held while it is kept.
    kept: Option<Rc<KvFile>>,
    /// There is one while it is in use.
    file: Weak<KvFile>,
    /// How often it was asked for, as of question `asked`; older questions count less.
    asks: f64,
    asked: i32,
}

/// Documents' files, and the passes that are still filling some of them.
pub struct Taken {
    pub files: Vec<Rc<KvFile>>,
    pub computing: Vec<Ticket<()>>,
}

impl Library {
    pub fn new<'a>(
        texts: impl Iterator<Item = &'a str>,
        keep_tokens: usize,
        hold_tokens: usize,
    ) -> Result<Library> {
        let page = model::info()?.page_size as usize;
        let filler = *model::tokenize("\n")?.last().unwrap_or(&0);
        let document = |text| {
            let mut tokens = model::tokenize(text)?;
            tokens.resize((tokens.len().max(1) + page - 1) / page * page, filler);
            Ok(Document { tokens, kept: None, file: Weak::new(), asks: 0.0, asked: 0 })
        };
        Ok(Library {
            documents: texts.map(document).collect::<Result<_>>()?,
            keep_tokens,
            hold_tokens,
            kept_tokens: 0,
            questions: 0,
            computed: 0,
            found: 0,
        })
    }

    /// A document's number, if there is such a document.
    pub fn number(&self, number: u32) -> Option<usize> {
        Some(number as usize).filter(|&number| number < self.documents.len())
    }

    pub fn tokens(&self, document: usize) -> &[u32] {
        &self.documents[document].tokens
    }

    pub fn computed(&self) -> usize {
        self.computed
    }

    pub fn found(&self) -> usize {
        self.found
    }

    /// Whether documents have room beside those that are kept or in use.
    pub fn has_room(&self, wanted: &[usize]) -> bool {
        let held = |number: &usize| self.documents[*number].file.strong_count() > 0;
        let size = |number: usize| self.documents[number].tokens.len();
        let lacking: usize = wanted.iter().filter(|number| !held(number)).map(|n| size(*n)).sum();
        lacking + (0..self.documents.len()).filter(held).map(size).sum::<usize>()
            <= self.hold_tokens
    }

    /// The files of documents. What is in none is begun; a reader waits in the server.
    pub fn take(&mut self, wanted: &[usize]) -> Result<Taken> {
        let mut taken = Taken { files: Vec::new(), computing: Vec::new() };
        self.questions += 1;
        for &number in wanted {
            let now = self.questions;
            let document = &mut self.documents[number];
            document.asks = document.asks_at(now) + 1.0;
            document.asked = now;
            let file = match document.file.upgrade() {
                Some(file) => {
                    self.found += 1;
                    file
                }
                None => {
                    self.computed += 1;
                    let file = Rc::new(KvFile::create()?);
                    taken.computing.push(file.prefill(&document.tokens));
                    document.file = Rc::downgrade(&file);
                    file
                }
            };
            self.consider(number, &file);
            taken.files.push(file);
        }
        Ok(taken)
    }

    /// Keeps a document where there is room, or where it is asked for more than what has to go.
    fn consider(&mut self, number: usize, file: &Rc<KvFile>) {
        if self.documents[number].kept.is_some() {
            return;
        }
        let (size, asks) = (self.documents[number].tokens.len(), self.documents[number].asks);
        let mut room = self.keep_tokens - self.kept_tokens;
        let mut going = Vec::new();
        while room < size {
            match self.least_asked(&going).filter(|&least| self.asks(least) < asks) {
                Some(least) => {
                    room += self.documents[least].tokens.len();
                    going.push(least);
                }
                None => return,
            }
        }
        going.into_iter().for_each(|document| self.documents[document].kept = None);
        self.kept_tokens = self.keep_tokens - room + size;
        self.documents[number].kept = Some(file.clone());
    }

    /// Of the kept documents the one that is asked for least, but for those that go already.
    fn least_asked(&self, going: &[usize]) -> Option<usize> {
        (0..self.documents.len())
            .filter(|number| self.documents[*number].kept.is_some() && !going.contains(number))
            .min_by(|&a, &b| self.asks(a).total_cmp(&self.asks(b)))
    }

    fn asks(&self, document: usize) -> f64 {
        self.documents[document].asks_at(self.questions)
    }

    /// Documents and a question as one prompt.
    pub fn prompt(&self, wanted: &[usize], question: &[u32]) -> Vec<u32> {
        let mut prompt = Vec::new();
        for &number in wanted {
            prompt.extend(&self.documents[number].tokens);
        }
        prompt.extend(question);
        prompt
    }

    /// Counts what of a prompt was known already.
    pub fn count(&mut self, wanted: &[usize], known: usize) {
        let mut end = 0;
        for &number in wanted {
            end += self.documents[number].tokens.len();
            if end <= known {
                self.found += 1;
            } else {
                self.computed += 1;
            }
        }
    }
}

impl Document {
    fn asks_at(&self, question: i32) -> f64 {
        self.asks * FADING.powi(question - self.asked)
    }
}
