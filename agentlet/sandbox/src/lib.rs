//! panda-sandbox
