//! panda-api
