//! Attributes that a client sets: SETATTR, CREATE and OPEN.
