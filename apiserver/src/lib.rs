//! panda-apiserver
