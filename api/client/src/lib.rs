//! panda-client
