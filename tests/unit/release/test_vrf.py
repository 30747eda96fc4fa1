"""The function that places URLs is the one of RFC 9381, and only the right proof holds."""

from __future__ import annotations

import random

import pytest

from stamm.release.p256 import proved_output
from stamm.release.vrf import SecretKey

SECRET = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
PUBLIC = "0360fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6"
# RFC 9381, B.1, examples 10 and 11
VECTORS = {
    b"sample": "035b5c726e8c0e2c488a107c600578ee75cb702343c153cb1eb8dec77f4b5071b4a53f0a46f018bc2c56e58d383f2305e0"
    "975972c26feea0eb122fe7893c15af376b33edf7de17c6ea056d4d82de6bc02f",
    b"test": "034dac60aba508ba0c01aa9be80377ebd7562c4a52d74722e0abae7dc3080ddb56c19e067b15a8a8174905b13617804534"
    "214f935b94c2287f797e393eb0816969d864f37625b443f30f1a5a33f2b3c854",
}


@pytest.mark.parametrize("text", VECTORS)
def test_proofs_are_those_of_the_standard(text: bytes) -> None:
    key = SecretKey(SECRET)
    assert key.public.hex() == PUBLIC
    assert key.proof(text).hex() == VECTORS[text]
    assert proved_output(key.public, text, key.proof(text)) == key.output(text)
    assert key.output(text).hex() == VECTORS[text][2:66]  # gamma without its sign


def test_a_changed_proof_text_or_key_proves_nothing() -> None:
    key, draw = SecretKey(SECRET), random.Random(3)
    proof = key.proof(b"sample")
    for place in draw.sample(range(81), 12):
        changed = bytearray(proof)
        changed[place] ^= 1 << draw.randrange(8)
        with pytest.raises(ValueError, match=r"not proved|not a point"):
            proved_output(key.public, b"sample", bytes(changed))
    for public, text, given in (
        (key.public, b"Sample", proof),
        (SecretKey(5).public, b"sample", proof),
        (key.public, b"sample", proof + b"\0"),
        (key.public, b"sample", b""),
    ):
        with pytest.raises(ValueError, match=r"not proved|not a point"):
            proved_output(public, text, given)
