//! [`lacks!`](crate::lacks!): how a layer says that it does not offer one of the traits beside `FileSystem`.

/// Implements traits of this crate for a layer that does not offer them: `lacks!(Nfs3: Opens, Extended)`.
///
/// Operations fail with `NotSupp`; questions get the answer of a layer that holds nothing. The line stands
/// where the implementation would stand, so that a reader sees the omission.
#[macro_export]
macro_rules! lacks {
    ($layer:ty: $($absent:ident),+ $(,)?) => { $($crate::lacks!(@$absent $layer);)+ };
    (@Opens $layer:ty) => {
        #[$crate::async_trait]
        impl $crate::Opens for $layer {
            async fn open(&self, _: &$crate::Caller, _: &$crate::OpenRequest) -> $crate::Result<$crate::Opened> {
                Err($crate::Status::NotSupp.into())
            }

            async fn downgrade(
                &self,
                _: &$crate::Caller,
                _: $crate::OpenId,
                _: $crate::Share,
                _: $crate::Share,
            ) -> $crate::Result<()> {
                Err($crate::Status::NotSupp.into())
            }

            async fn flush(&self, _: &$crate::Caller, _: $crate::OpenId) -> $crate::Result<()> {
                Err($crate::Status::NotSupp.into())
            }

            async fn close(&self, _: &$crate::Caller, _: $crate::OpenId) -> $crate::Result<()> {
                Err($crate::Status::NotSupp.into())
            }

            async fn lock(
                &self,
                _: &$crate::Caller,
                _: $crate::OpenId,
                _: &$crate::LockRequest,
            ) -> $crate::Result<$crate::Locked> {
                Err($crate::Status::NotSupp.into())
            }

            async fn unlock(
                &self,
                _: &$crate::Caller,
                _: $crate::OpenId,
                _: &$crate::Owner,
                _: (u64, u64),
            ) -> $crate::Result<()> {
                Err($crate::Status::NotSupp.into())
            }

            async fn test(
                &self,
                _: &$crate::Caller,
                _: &$crate::Handle,
                _: &$crate::Lock,
            ) -> $crate::Result<Option<$crate::Lock>> {
                Err($crate::Status::NotSupp.into())
            }

            fn holds_locks(&self, _: $crate::OpenId, _: &$crate::Owner) -> bool {
                false
            }

            async fn free_capacity(&self, _: &$crate::Caller) -> bool {
                false
            }
        }
    };
    (@Leases $layer:ty) => {
        #[$crate::async_trait]
        impl $crate::Leases for $layer {
            fn callbacks(&self) -> Option<$crate::Callbacks> {
                None
            }

            fn adopted(&self) -> $crate::Adopted {
                $crate::Adopted::default()
            }

            async fn end_reclaim(&self) {}

            async fn returned(&self, _: &$crate::Caller, _: $crate::LeaseId) -> $crate::Result<()> {
                Err($crate::Status::NotSupp.into())
            }

            async fn lease(
                &self,
                _: &$crate::Caller,
                _: &$crate::Handle,
                _: $crate::LeaseKind,
                _: std::time::Duration,
            ) -> $crate::Result<Option<$crate::Lease>> {
                Ok(None)
            }

            async fn delegate(
                &self,
                caller: &$crate::Caller,
                directory: &$crate::Handle,
                asked: $crate::AccessMask,
            ) -> $crate::Result<$crate::Delegated> {
                let accessed = $crate::FileSystem::access(self, caller, directory, asked).await?;
                Ok($crate::Delegated { accessed, lease: None })
            }
        }
    };
    (@Extended $layer:ty) => {
        #[$crate::async_trait]
        impl $crate::Extended for $layer {
            async fn acl(&self, _: &$crate::Caller, _: &$crate::Handle) -> $crate::Result<$crate::Acl> {
                Err($crate::Status::NotSupp.into())
            }

            async fn set_acl(
                &self,
                _: &$crate::Caller,
                _: &$crate::Handle,
                _: &$crate::Acl,
            ) -> $crate::Result<$crate::Wcc> {
                Err($crate::Status::NotSupp.into())
            }

            async fn getxattr(
                &self,
                _: &$crate::Caller,
                _: &$crate::Handle,
                _: &$crate::XattrName,
            ) -> $crate::Result<$crate::Bytes> {
                Err($crate::Status::NotSupp.into())
            }

            async fn setxattr(
                &self,
                _: &$crate::Caller,
                _: &$crate::Handle,
                _: &$crate::XattrName,
                _: $crate::Bytes,
                _: $crate::XattrHow,
            ) -> $crate::Result<$crate::Wcc> {
                Err($crate::Status::NotSupp.into())
            }

            async fn listxattrs(
                &self,
                _: &$crate::Caller,
                _: &$crate::Handle,
                _: u64,
                _: u32,
            ) -> $crate::Result<$crate::ListedXattrs> {
                Err($crate::Status::NotSupp.into())
            }

            async fn removexattr(
                &self,
                _: &$crate::Caller,
                _: &$crate::Handle,
                _: &$crate::XattrName,
            ) -> $crate::Result<$crate::Wcc> {
                Err($crate::Status::NotSupp.into())
            }

            async fn seek(
                &self,
                _: &$crate::Caller,
                _: &$crate::Handle,
                _: $crate::StateidBasis,
                _: u64,
                _: $crate::Extent,
            ) -> $crate::Result<$crate::Sought> {
                Err($crate::Status::NotSupp.into())
            }

            async fn allocate(
                &self,
                _: &$crate::Caller,
                _: $crate::Place,
                _: u64,
            ) -> $crate::Result<$crate::Wcc> {
                Err($crate::Status::NotSupp.into())
            }

            async fn deallocate(
                &self,
                _: &$crate::Caller,
                _: $crate::Place,
                _: u64,
            ) -> $crate::Result<$crate::Wcc> {
                Err($crate::Status::NotSupp.into())
            }

            async fn copy(
                &self,
                _: &$crate::Caller,
                _: $crate::Place,
                _: $crate::Place,
                _: u64,
            ) -> $crate::Result<$crate::Copied> {
                Err($crate::Status::NotSupp.into())
            }

            async fn clone_range(
                &self,
                _: &$crate::Caller,
                _: $crate::Place,
                _: $crate::Place,
                _: u64,
            ) -> $crate::Result<$crate::Wcc> {
                Err($crate::Status::NotSupp.into())
            }
        }
    };
    (@LocalView $layer:ty) => {
        #[$crate::async_trait]
        impl $crate::LocalView for $layer {
            fn believed_until(&self, _: &$crate::Handle) -> Option<$crate::Instant> {
                None
            }

            fn names_doubted(&self, _: &$crate::Handle) -> u64 {
                0
            }

            async fn complete_file(&self, _: &$crate::Caller, _: $crate::OpenId) -> Option<$crate::CompleteFile> {
                None
            }

            fn is_remembered(&self, _: &$crate::Handle, _: &$crate::Name) -> Option<bool> {
                None
            }
        }
    };
}
