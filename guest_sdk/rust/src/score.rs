//! How likely the model finds given answers.

use crate::combine::try_join_all;
use crate::error::{Located, Result};
use crate::model;
use crate::session::Session;
use alloc::vec::Vec;
use core::future::Future;
use core::panic::Location;

/// The tokens of a tree: the server's limit on one pass with parents.
const TREE_TOKENS_MAX: usize = 256;

impl Session {
    /// The log-probability of each answer, in all, after this text and `question`. The text stays as
    /// it is, and one pass answers for all of them where they are short.
    ///
    /// ```
    /// # symphony::testing::Host::new().run(|| symphony::block_on(async {
    /// use symphony::Session;
    ///
    /// let mut session = Session::new("The sky is green.")?;
    /// let scores = session.score(" True or false?", &[" true", " false"]).await?;
    /// let verdict = if scores[0] > scores[1] { "true" } else { "false" };
    /// # assert!(verdict.len() > 3 && scores.iter().all(|score| *score < 0.0));
    /// # symphony::Result::Ok(()) }).unwrap());
    /// ```
    #[track_caller]
    pub fn score<'a>(
        &'a mut self,
        question: &'a str,
        answers: &'a [&'a str],
    ) -> impl Future<Output = Result<Vec<f64>>> + 'a {
        Located::new(Location::caller(), self.scores(question, answers))
    }

    /// How much likelier the model finds the answer `good` to a question than the answer `bad`: the
    /// difference of their log-probabilities.
    #[track_caller]
    pub fn log_odds<'a>(
        &'a mut self,
        question: &'a str,
        good: &'a str,
        bad: &'a str,
    ) -> impl Future<Output = Result<f64>> + 'a {
        let location = Location::caller();
        async move {
            let found = Located::new(location, self.scores(question, &[good, bad])).await?;
            Ok(found[0] - found[1])
        }
    }

    async fn scores(&mut self, question: &str, answers: &[&str]) -> Result<Vec<f64>> {
        self.prefill().await?;
        let begin = [self.pending()?, &model::tokenize(question)?].concat();
        let answers: Result<Vec<Vec<u32>>> = answers.iter().map(|a| model::tokenize(a)).collect();
        let answers = answers?;
        let together = begin.len() + answers.iter().map(Vec::len).sum::<usize>();
        if together <= TREE_TOKENS_MAX {
            self.count(together, 0);
            return self.score_tree(&begin, &answers).await;
        }
        self.count(answers.iter().map(|answer| begin.len() + answer.len()).sum(), 0);
        let this = &*self;
        let begin = begin.as_slice();
        try_join_all(answers.iter().map(|answer| this.score_chain(begin, answer))).await
    }

    /// All answers in one pass: each is a branch of the tree whose trunk is `begin`.
    async fn score_tree(&self, begin: &[u32], answers: &[Vec<u32>]) -> Result<Vec<f64>> {
        let mut tokens = begin.to_vec();
        let mut parents: Vec<i32> = (-1..begin.len() as i32 - 1).collect();
        for answer in answers {
            let mut parent = begin.len() as i32 - 1;
            for token in answer {
                parents.push(parent);
                parent = tokens.len() as i32;
                tokens.push(*token);
            }
        }
        let places: Vec<u32> = (begin.len() as u32 - 1..tokens.len() as u32).collect();
        let wanted = &tokens[begin.len()..];
        let found = self.kv().pred(&tokens).parents(&parents).keep(false).at(&places);
        let found = found.of(wanted).await?;
        // Row r is what comes after token `begin.len() - 1 + r`, column c is the answers' token c.
        let logprob = |c: usize| {
            let row = parents[begin.len() + c] as usize + 1 - begin.len();
            f64::from(found[row][c])
        };
        let mut at = 0;
        Ok(answers
            .iter()
            .map(|answer| {
                at += answer.len();
                (at - answer.len()..at).map(logprob).sum()
            })
            .collect())
    }

    /// One answer in a pass of its own.
    async fn score_chain(&self, begin: &[u32], answer: &[u32]) -> Result<f64> {
        let tokens = [begin, answer].concat();
        let places: Vec<u32> =
            (begin.len() as u32 - 1..tokens.len() as u32).take(answer.len()).collect();
        let found = self.kv().pred(&tokens).keep(false).at(&places).of(answer).await?;
        Ok((0..answer.len()).map(|i| f64::from(found[i][i])).sum())
    }
}
