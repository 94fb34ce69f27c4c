//! The tree against the vectors of Certificate Transparency, notes against those of Go's note package, and
//! every proof against every size of small trees.

use holdfast_core::evidence::{
    Checkpoint, Envelope, Hash, Note, NoteError, Range, SignerKey, VerifierKey, consistency, empty_root,
    inclusion, leaf_hash, node_hash, root_of, spell_hash, verify_consistency, verify_inclusion,
};
use proptest::prelude::*;

fn hex(hash: &Hash) -> String {
    spell_hash(hash)
}

/// A tree that keeps only its leaves.
fn nodes(leaves: &[Hash]) -> impl Fn(u32, u64) -> Result<Hash, ()> + '_ {
    fn of(leaves: &[Hash]) -> Hash {
        if let [leaf] = leaves {
            return *leaf;
        }
        let (left, right) = leaves.split_at(leaves.len() / 2);
        node_hash(&of(left), &of(right))
    }
    move |level, n| {
        let (low, size) = (usize::try_from(n << level).map_err(|_| ())?, 1usize << level);
        leaves.get(low..low + size).map(of).ok_or(())
    }
}

const LEAVES: [&[u8]; 8] = [
    b"",
    b"\x00",
    b"\x10",
    b"\x20\x21",
    b"\x30\x31",
    b"\x40\x41\x42\x43",
    b"\x50\x51\x52\x53\x54\x55\x56\x57",
    b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
];
const ROOTS: [&str; 8] = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
];

#[test]
fn the_roots_are_those_of_certificate_transparency() {
    let leaves: Vec<Hash> = LEAVES.iter().map(|leaf| leaf_hash(leaf)).collect();
    let mut range = Range::default();
    assert_eq!(range.root(), empty_root());
    assert_eq!(hex(&empty_root()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    for (size, (leaf, root)) in (1..).zip(leaves.iter().zip(ROOTS)) {
        range.push(*leaf, |_, _, _| {});
        assert_eq!(hex(&range.root()), root);
        assert_eq!(root_of(&nodes(&leaves), size).map(|root| hex(&root)), Ok(root.to_owned()));
        assert_eq!(Range::of(&nodes(&leaves), size), Ok(range.clone()));
    }
}

#[test]
fn the_proofs_are_those_of_certificate_transparency() {
    let leaves: Vec<Hash> = LEAVES.iter().map(|leaf| leaf_hash(leaf)).collect();
    let path = |n, size| inclusion(&nodes(&leaves), n, size).unwrap().iter().map(hex).collect::<Vec<_>>();
    assert_eq!(path(0, 1), Vec::<String>::new());
    assert_eq!(
        path(0, 8),
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ]
    );
    assert_eq!(
        path(5, 8),
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ]
    );
    let between =
        |old, new| consistency(&nodes(&leaves), old, new).unwrap().iter().map(hex).collect::<Vec<_>>();
    assert_eq!(
        between(1, 8),
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ]
    );
    assert_eq!(
        between(6, 8),
        [
            "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ]
    );
}

#[test]
fn every_proof_of_a_small_tree_holds_for_its_own_leaf_and_size_and_for_nothing_else() {
    let leaves: Vec<Hash> = (0..33u8).map(|n| leaf_hash(&[n])).collect();
    let kept = nodes(&leaves);
    let roots: Vec<Hash> = (0..=33).map(|size| root_of(&kept, size).unwrap()).collect();
    let root = |size: u64| &roots[usize::try_from(size).unwrap()];
    for size in 1..=33u64 {
        for n in 0..size {
            let path = inclusion(&kept, n, size).unwrap();
            for (other, leaf) in (0..).zip(&leaves) {
                assert_eq!(verify_inclusion(leaf, n, size, &path, root(size)), other == n);
            }
            for at in 0..=33 {
                let leaf = &leaves[usize::try_from(n).unwrap()];
                assert!(at == n || !verify_inclusion(leaf, at, size, &path, root(size)));
                assert!(at == size || !verify_inclusion(leaf, n, size, &path, root(at)));
            }
        }
        for old in 0..=size {
            let path = consistency(&kept, old, size).unwrap();
            assert!(verify_consistency((old, root(old)), (size, root(size)), &path));
            for other in 1..=33 {
                let (before, after) = ((old, root(other)), (size, root(other)));
                assert!(old == 0 || other == old || !verify_consistency(before, (size, root(size)), &path));
                assert!(old == 0 || other == size || !verify_consistency((old, root(old)), after, &path));
            }
        }
    }
}

const PUBLIC: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
const SECRET: &str = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz";
const TEXT: &str = "If you think cryptography is the answer to your problem,\n\
                    then you don't know what your problem is.\n";
const SIGNED: &str = "\u{2014} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";

#[test]
fn a_note_is_signed_and_written_as_other_programs_do() {
    let (key, public) = (SignerKey::parse(SECRET).unwrap(), VerifierKey::parse(PUBLIC).unwrap());
    assert_eq!(key.secret(), SECRET);
    assert_eq!(key.verifier(), &public);
    assert_eq!(public.to_string(), PUBLIC);
    let mut note = Note::new(TEXT.to_owned());
    note.sign(&key);
    assert_eq!(note.to_string(), format!("{TEXT}\n{SIGNED}"));
    assert_eq!(Note::parse(&note.to_string()), Ok(note.clone()));
    assert_eq!(note.signed_by(&public), Ok(None));
    assert!(!format!("{key:?}").contains("AYEKFALVFGyNhPJEMzD1QIDr"));
}

#[test]
fn a_witness_says_when_and_its_key_is_not_the_logs() {
    let (log, witness) = (
        SignerKey::parse(SECRET).unwrap(),
        SignerKey::from_seed("witness.example/w1", [7; 32], true).unwrap(),
    );
    let checkpoint =
        Checkpoint { origin: "holdfast/x/1".into(), size: 7, root: [1; 32], extensions: Vec::new() };
    let mut note = Note::new(checkpoint.text());
    note.sign(&log);
    let mut seen = note.clone();
    seen.cosign(&witness, 1_700_000_000);
    note.merge(seen).unwrap();
    let note = Note::parse(&note.to_string()).unwrap();
    assert_eq!(note.signed_by(witness.verifier()), Ok(Some(1_700_000_000)));
    assert_eq!(note.signed_by(log.verifier()), Ok(None));
    assert_eq!(Checkpoint::parse(&note.text), Ok(checkpoint));
    let plain = SignerKey::from_seed("witness.example/w1", [7; 32], false).unwrap();
    assert!(matches!(note.signed_by(plain.verifier()), Err(NoteError::Unsigned(_))));
    let other = Note::new("another\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n".into());
    assert!(note.clone().merge(other).is_err());
}

#[test]
fn what_is_not_a_key_a_note_or_a_checkpoint_is_refused() {
    for bad in
        ["", "a+b", "PeterNeumann+c74f20a4+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW", "a b+c74f20a3+AQ=="]
    {
        assert!(VerifierKey::parse(bad).is_err(), "{bad}");
        assert!(SignerKey::parse(bad).is_err(), "{bad}");
    }
    let unended = "x\n\n\u{2014} a b";
    for bad in [
        "",
        "x",
        "x\n\n",
        "x\n\nnot a signature\n",
        unended,
        "x\n\n\u{2014} a AAAA\n",
        "a\tb\n\n\u{2014} a AAAAAAA=\n",
    ] {
        assert!(Note::parse(bad).is_err(), "{bad:?}");
    }
    for bad in
        ["", "o\n1\n", "o\n01\nAAAA\n", "o\n1\nAAAA\n", "\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"]
    {
        assert!(Checkpoint::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn an_envelope_opens_for_the_key_that_signed_it_only() {
    let key = SignerKey::parse(SECRET).unwrap();
    let envelope = Envelope::sign(b"{}", &key);
    assert_eq!(envelope.open(key.verifier()), Ok(b"{}".to_vec()));
    let other = SignerKey::from_seed("other", [3; 32], false).unwrap();
    assert!(matches!(envelope.open(other.verifier()), Err(NoteError::Unsigned(_))));
    let changed = Envelope { payload: "e30K".into(), ..envelope };
    assert!(matches!(changed.open(key.verifier()), Err(NoteError::Forged(_))));
}

proptest! {
    #[test]
    fn any_text_ends_in_a_note_or_a_refusal(text in ".{0,200}", line in "\u{2014} [a-z]{1,4} [A-Za-z0-9+/]{0,8}={0,2}\n") {
        let _ = Note::parse(&text);
        let _ = Checkpoint::parse(&text);
        let _ = VerifierKey::parse(&text);
        if let Ok(note) = Note::parse(&format!("{text}\n\n{line}")) {
            prop_assert_eq!(Note::parse(&note.to_string()), Ok(note));
        }
    }

    #[test]
    fn one_changed_byte_of_a_signed_note_shows(at in 0usize..200, flip in 1u8..) {
        let (key, mut note) = (SignerKey::parse(SECRET).unwrap(), Note::new(TEXT.to_owned()));
        note.sign(&key);
        let mut bytes = note.to_string().into_bytes();
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let found = String::from_utf8(bytes).ok().and_then(|text| Note::parse(&text).ok());
        if let Some(found) = found.filter(|found| found != &note) {
            prop_assert!(found.signed_by(key.verifier()).is_err());
        }
    }
}
