//! The policy of planewal: what may be forgotten.
