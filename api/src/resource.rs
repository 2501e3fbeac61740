//! What makes a type a kind.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::meta::{ObjectMeta, OwnerReference};

/// A kind served by the API.
pub trait Resource: Serialize + DeserializeOwned + Clone + std::fmt::Debug + Send + Sync + 'static {
    /// API group; empty for the core group.
    const GROUP: &'static str;
    /// Version within the group.
    const VERSION: &'static str;
    /// Kind, in CamelCase.
    const KIND: &'static str;
    /// Plural, lower case: the name in URLs.
    const PLURAL: &'static str;
    /// Whether objects live in a namespace.
    const NAMESPACED: bool;

    /// The object's metadata.
    fn metadata(&self) -> &ObjectMeta;
    /// The object's metadata, to change.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// `group/version`, or the version alone for the core group.
    #[must_use]
    fn api_version() -> String {
        if Self::GROUP.is_empty() {
            Self::VERSION.to_owned()
        } else {
            format!("{}/{}", Self::GROUP, Self::VERSION)
        }
    }

    /// A reference that makes this object the managing owner of another.
    #[must_use]
    fn controller_reference(&self) -> OwnerReference {
        let meta = self.metadata();
        OwnerReference {
            api_version: Self::api_version(),
            kind: Self::KIND.to_owned(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

/// Defines a kind: the struct with `apiVersion`, `kind`, `metadata` and the given fields, and its [`Resource`].
#[macro_export]
macro_rules! resource {
    (
        $(#[$doc:meta])*
        $name:ident, $group:literal, $version:literal, $plural:literal, namespaced: $namespaced:literal {
            $( $(#[$field_doc:meta])* $field:ident : $ty:ty ),* $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            /// `group/version` of the kind.
            pub api_version: String,
            /// The kind.
            pub kind: String,
            /// Name, labels, owner references and what the server keeps about the object.
            #[serde(default)]
            pub metadata: $crate::meta::ObjectMeta,
            $( $(#[$field_doc])* pub $field: $ty, )*
        }

        impl $crate::Resource for $name {
            const GROUP: &'static str = $group;
            const VERSION: &'static str = $version;
            const KIND: &'static str = stringify!($name);
            const PLURAL: &'static str = $plural;
            const NAMESPACED: bool = $namespaced;

            fn metadata(&self) -> &$crate::meta::ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut $crate::meta::ObjectMeta {
                &mut self.metadata
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    api_version: <Self as $crate::Resource>::api_version(),
                    kind: stringify!($name).to_owned(),
                    metadata: Default::default(),
                    $( $field: Default::default(), )*
                }
            }
        }
    };
}
