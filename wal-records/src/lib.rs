//! The meaning of planewal: what a record is, whose it is, and the state that records fold into.
