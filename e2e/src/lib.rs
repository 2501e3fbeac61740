//! panda-e2e
