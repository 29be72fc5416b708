//! Guesses from the text itself (prompt lookup): what followed these words before may follow again.

/// How to guess.
pub struct Guesser {
    /// The text's last so many tokens are looked for first, then fewer.
    pub longest: usize,
    /// How many different continuations.
    pub branches: usize,
    /// How many tokens each.
    pub depth: usize,
}

/// Tokens and each one's parent, -1 for the first, which is the text's last token.
pub struct Tree {
    pub tokens: Vec<u32>,
    pub parents: Vec<i32>,
}

impl Guesser {
    /// The text's last token, and guesses behind it. Continuations that begin alike share nodes.
    pub fn guess(&self, text: &[u32]) -> Tree {
        let mut tree = Tree { tokens: text[text.len() - 1..].to_vec(), parents: vec![-1] };
        let mut branches = 0;
        for length in (1..=self.longest.min(text.len() - 1)).rev() {
            let (earlier, sought) = (&text[..text.len() - 1], &text[text.len() - length..]);
            let places = earlier.windows(length).enumerate().rev();
            for (place, _) in places.filter(|(_, words)| *words == sought) {
                if branches == self.branches {
                    return tree;
                }
                let next = &text[place + length..];
                branches += usize::from(tree.add(&next[..next.len().min(self.depth)]));
            }
            if branches > 0 {
                break; // shorter ones are weaker evidence
            }
        }
        tree
    }
}

impl Tree {
    /// The node of this token behind another one.
    pub fn child(&self, parent: usize, token: u32) -> Option<usize> {
        (parent + 1..self.tokens.len())
            .find(|&node| self.parents[node] == parent as i32 && self.tokens[node] == token)
    }

    /// Adds a continuation of the root; whether there was anything new in it.
    fn add(&mut self, continuation: &[u32]) -> bool {
        let (mut at, before) = (0, self.tokens.len());
        for &token in continuation {
            at = self.child(at, token).unwrap_or_else(|| {
                self.tokens.push(token);
                self.parents.push(at as i32);
                self.tokens.len() - 1
            });
        }
        self.tokens.len() > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(text: &[u32], longest: usize, branches: usize, depth: usize) -> (Vec<u32>, Vec<i32>) {
        let tree = Guesser { longest, branches, depth }.guess(text);
        (tree.tokens, tree.parents)
    }

    #[test]
    fn the_longest_match_says_what_comes() {
        let text = [9, 1, 2, 3, 4, 5, 8, 2, 3, 6, 1, 2, 3];
        assert_eq!(guess(&text, 3, 3, 2), (vec![3, 4, 5], vec![-1, 0, 1]));
        // Two tokens were there twice: the later place comes first.
        assert_eq!(guess(&text, 2, 3, 2), (vec![3, 6, 1, 4, 5], vec![-1, 0, 1, 0, 3]));
        assert_eq!(guess(&text, 2, 1, 2), (vec![3, 6, 1], vec![-1, 0, 1]));
    }

    #[test]
    fn what_begins_alike_shares_nodes() {
        let text = [1, 2, 3, 1, 2, 4, 1];
        assert_eq!(guess(&text, 1, 4, 2), (vec![1, 2, 4, 3], vec![-1, 0, 1, 1]));
        let tree = Guesser { longest: 1, branches: 4, depth: 2 }.guess(&text);
        assert_eq!((tree.child(1, 3), tree.child(0, 3)), (Some(3), None));
    }

    #[test]
    fn without_a_match_there_is_no_guess() {
        assert_eq!(guess(&[1, 2, 3], 3, 3, 8), (vec![3], vec![-1]));
        assert_eq!(guess(&[3], 3, 3, 8), (vec![3], vec![-1]));
        assert_eq!(guess(&[3, 3], 3, 0, 8), (vec![3], vec![-1]));
    }
}
