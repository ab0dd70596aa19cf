//! Serialization of the HTTP API's responses as replies, with the same members in the same order.

use std::fmt::Error;

use serde::Serialize;
use serde::ser::{Impossible, SerializeMap, SerializeSeq, SerializeStruct, Serializer};

use tollgate::ErrorKind;

use super::replies::Replies;

/// Integers that fit a RESP integer; others are text.
macro_rules! integers {
    ($($name:ident: $type:ty),+) => {
        $(fn $name(self, number: $type) -> Result<(), Error> {
            match i64::try_from(number) {
                Ok(number) => self.integer(number),
                Err(_) => self.bulk(number.to_string().as_bytes()),
            }
            Ok(())
        })+
    };
}

/// An error for each kind of value that no response has.
macro_rules! unsupported {
    ($($name:ident($($type:ty),*) -> $answer:ty;)+) => {
        $(fn $name(self, $(_: $type),*) -> Result<$answer, Error> {
            Err(Error)
        })+
    };
}

impl Replies {
    /// Writes `value`.
    pub(super) fn value(&mut self, value: &impl Serialize) -> Result<(), tollgate::Error> {
        let before = self.bytes().len();
        value.serialize(&mut *self).map_err(|error| {
            self.truncate(before);
            let text = "a response cannot be encoded";
            tollgate::Error::new(ErrorKind::Corrupt, text).caused_by(error)
        })
    }
}

impl<'a> Serializer for &'a mut Replies {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = &'a mut Replies;
    type SerializeMap = &'a mut Replies;
    type SerializeStruct = &'a mut Replies;
    type SerializeTuple = Impossible<(), Error>;
    type SerializeTupleStruct = Impossible<(), Error>;
    type SerializeTupleVariant = Impossible<(), Error>;
    type SerializeStructVariant = Impossible<(), Error>;

    integers!(serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64);
    integers!(serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64);

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.boolean(value);
        Ok(())
    }

    fn serialize_str(self, text: &str) -> Result<(), Error> {
        self.bulk(text.as_bytes());
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.null();
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.serialize_none()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Self, Error> {
        self.array(length.ok_or(Error)?);
        Ok(self)
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Self, Error> {
        self.map(length.ok_or(Error)?);
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, length: usize) -> Result<Self, Error> {
        self.serialize_map(Some(length))
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
    ) -> Result<(), Error> {
        self.serialize_str(name)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), Error> {
        Err(Error)
    }

    unsupported! {
        serialize_f32(f32) -> ();
        serialize_f64(f64) -> ();
        serialize_char(char) -> ();
        serialize_bytes(&[u8]) -> ();
        serialize_unit_struct(&'static str) -> ();
        serialize_tuple(usize) -> Self::SerializeTuple;
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant;
        serialize_struct_variant(&'static str, u32, &'static str, usize) -> Self::SerializeStructVariant;
    }
}

impl SerializeSeq for &mut Replies {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}

impl SerializeMap for &mut Replies {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, name: &T) -> Result<(), Error> {
        name.serialize(&mut **self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}

impl SerializeStruct for &mut Replies {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.bulk(name.as_bytes());
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tollgate::core::{Amounts, Grant};
    use tollgate::{Limit, Permit, Policy, Standing, Timestamp, TokenBucket};

    use super::*;
    use tollgate_protocol::json::Admitted;

    fn written(is_resp3: bool, value: &impl Serialize) -> String {
        let mut replies = Replies::default();
        replies.is_resp3 = is_resp3;
        value.serialize(&mut replies).unwrap();
        String::from_utf8(replies.bytes().to_vec()).unwrap()
    }

    #[test]
    fn a_value_in_both_versions() {
        let value = serde_json::json!({"a": true, "b": [null, -12, u64::MAX, "x"]});
        assert_eq!(
            written(true, &value),
            "%2\r\n$1\r\na\r\n#t\r\n$1\r\nb\r\n*4\r\n_\r\n:-12\r\n$20\r\n18446744073709551615\r\n$1\r\nx\r\n"
        );
        assert_eq!(
            written(false, &value),
            "*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n*4\r\n$-1\r\n:-12\r\n$20\r\n18446744073709551615\r\n$1\r\nx\r\n"
        );
    }

    /// Omitted members are not counted: a client would wait for them.
    #[test]
    fn an_answer_has_as_many_members_as_it_says() {
        let policy = Policy::new("api", [Limit::new("a", "b", TokenBucket::per_second(10))]);
        let grant = Grant { at: Timestamp::EPOCH, stamp: 1, use_by: None, expires_at: None };
        let mut permit = Permit::new(&policy.unwrap(), "alice", Amounts::default(), grant);
        permit.limits = vec![Standing {
            name: "a".into(),
            unit: "b".into(),
            limit: 10,
            used: 1,
            remaining: 9,
            reset_at: Some(Timestamp::from_secs(1)),
            full_at: None,
            refilled_at: None,
        }];
        let answer = Admitted::new(&permit, &[7; 32].into(), Timestamp::EPOCH);
        let Value::Object(members) = serde_json::to_value(&answer).unwrap() else { panic!() };
        let reply = written(true, &answer);
        assert!(reply.starts_with(&format!("%{}\r\n$8\r\nadmitted\r\n#t\r\n", members.len())));
        assert!(reply.contains("$8\r\nreset_at\r\n$20\r\n1970-01-01T00:00:01Z\r\n"), "{reply}");
        assert!(reply.contains("$7\r\nfull_at\r\n_\r\n"), "{reply}");
    }
}
