//! Rotary positions: a head's numbers are rotated, pair by pair, by angles that grow with the token's position.
//!
//! So the dot product of a query and a key depends on how far apart the two tokens are
//! ([Su et al., "RoFormer", 2021](https://arxiv.org/abs/2104.09864)). Keys are rotated before they are cached.

/// The sines and cosines of some positions.
pub(super) struct Rotation {
    half: usize,
    /// `[positions, head_dim / 2]`, cosine and sine.
    turns: Vec<(f32, f32)>,
}

impl Rotation {
    /// Angles `position / theta^(2i / head_dim)` for each pair `i`, rounded to `f32` as in the reference.
    pub(super) fn new(positions: &[usize], head_dim: usize, theta: f32) -> Self {
        let half = head_dim / 2;
        let frequencies: Vec<f32> = (0..half)
            .map(|pair| {
                let exponent = (2 * pair) as f32 / head_dim as f32;
                1.0 / (theta as f64).powf(exponent as f64) as f32
            })
            .collect();
        let turns = positions
            .iter()
            .flat_map(|position| {
                frequencies.iter().map(|frequency| {
                    let angle = (*position as f32 * frequency) as f64;
                    (angle.cos() as f32, angle.sin() as f32)
                })
            })
            .collect();
        Rotation { half, turns }
    }

    pub(super) fn tokens(&self) -> usize {
        self.turns.len() / self.half
    }

    /// Rotates one head of token number `token` of these positions. Pairs lie half a head apart.
    pub(super) fn rotate(&self, token: usize, head: &mut [f32]) {
        let (first, second) = head.split_at_mut(self.half);
        let turns = &self.turns[token * self.half..][..self.half];
        for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(turns) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}
