//! Certificates of devices: of the request, nothing but the public key goes into them.

use std::time::Duration;

use panda_api::meta::Time;
use rcgen::{DnType, ExtendedKeyUsagePurpose, SanType};

use super::{DAY, Error, Pki, Subject, life, subject};

/// A certificate for a key that somebody else holds.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    /// PEM.
    pub(crate) certificate_pem: String,
    /// When it ends.
    pub(crate) not_after: Time,
}

impl Pki {
    /// Signs a device's public key (SubjectPublicKeyInfo, DER) for its name and uid.
    pub(crate) fn device(
        &self,
        name: &str,
        uid: &str,
        public_key: &[u8],
        lasts: Duration,
    ) -> Result<Issued, Error> {
        let subject = Subject::device(name, uid);
        let failed = |source| Error::Issue {
            subject: subject.user.clone(),
            source,
        };
        let key = rcgen::SubjectPublicKeyInfo::from_der(public_key).map_err(failed)?;
        let mut params = self.leaf(ExtendedKeyUsagePurpose::ClientAuth);
        // Room for a clock that is behind, in proportion: renewal counts from the beginning.
        let end = life(
            &mut params,
            self.clock.as_ref(),
            self.ids.as_ref(),
            DAY.min(lasts / 10),
            lasts,
        );
        params
            .distinguished_name
            .push(DnType::CommonName, subject.user.as_str());
        for group in &subject.groups {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group.as_str());
        }
        let urn = format!("{}{uid}", subject::DEVICE_URN);
        let urn = urn.clone().try_into().map_err(|_| Error::Name(urn))?;
        params.subject_alt_names.push(SanType::URI(urn));
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let not_after = jiff::Timestamp::from_second(end).unwrap_or(jiff::Timestamp::MAX);
        Ok(Issued {
            certificate_pem: certificate.pem(),
            not_after: Time(not_after),
        })
    }
}
