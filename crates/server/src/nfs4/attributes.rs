//! Attributes that a client asks for: GETATTR, READDIR, VERIFY and NVERIFY.
