//! panda-store
