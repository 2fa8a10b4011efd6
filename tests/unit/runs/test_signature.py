"""A signed folder: any change to a file, the list or the signature is found, and links and paths open nothing."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from sottovoce.runs import owner_key as keys
from sottovoce.runs.owner_key import owner_key
from sottovoce_evidence import signature
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.signature import BASE, MANIFEST, RELEASE, SIGNATURE, SIGNER, check_folder, sign_folder


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "a.key"
    keys._make_key(path)
    return keys.load_key(path)


@pytest.fixture
def other_key(tmp_path):
    keys._make_key(tmp_path / "other.key")
    return keys.load_key(tmp_path / "other.key")


@pytest.fixture
def folder(tmp_path, key):
    folder = tmp_path / "folder"
    (folder / "onnx").mkdir(parents=True)
    (folder / "weights").write_bytes(b"1234")
    (folder / "onnx" / "step.onnx").write_bytes(b"graph")
    sign_folder(folder, key, RELEASE)
    return folder


def test_a_signed_folder_has_its_signer_and_no_fault(folder, key):
    found = check_folder(folder, RELEASE)
    assert found == signature.Signed(signature.fingerprint(key.public_key()))
    listed = [line.split("  ")[1] for line in (folder / MANIFEST).read_text().splitlines()]
    assert listed == ["onnx/step.onnx", SIGNER, "weights"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not there")
def test_openssh_and_sha256sum_accept_it(folder, key, tmp_path):
    with (folder / MANIFEST).open("rb") as manifest:
        verify = ["ssh-keygen", "-Y", "check-novalidate", "-n", RELEASE, "-s", SIGNATURE]
        out = subprocess.run(verify, stdin=manifest, cwd=folder, check=True, capture_output=True, text=True).stdout
    assert signature.fingerprint(key.public_key()) in out
    subprocess.run(["sha256sum", "--quiet", "-c", MANIFEST], cwd=folder, check=True)
    # And a key that OpenSSH made signs.
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "theirs"], check=True)
    sign_folder(folder, owner_key(tmp_path / "theirs"), RELEASE)
    assert check_folder(folder, RELEASE).file_faults == ()


def forge(folder: Path, old: str, new: str) -> None:
    """Edit the list itself."""
    text = (folder / MANIFEST).read_text()
    assert old in text
    (folder / MANIFEST).write_text(text.replace(old, new))


def link(path: Path) -> None:
    """The same contents, elsewhere."""
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


UNSIGNED_LIST = f"{SIGNATURE} is not a signature of this {MANIFEST}"
ATTACKS = {
    "changed": (lambda f: (f / "weights").write_bytes(b"1235"), "weights was changed"),
    "changed inside": (lambda f: (f / "onnx/step.onnx").write_bytes(b"other"), "onnx/step.onnx was changed"),
    "removed": (lambda f: (f / "weights").unlink(), "weights is missing"),
    "added": (lambda f: (f / "evil.py").write_bytes(b""), "evil.py was added"),
    "added, odd name": (lambda f: (f / "a\x1b[2Jb").write_bytes(b""), "a\\x1b[2Jb was added"),
    "added, no text": (lambda f: Path(os.fsdecode(bytes(f) + b"/\xff")).write_bytes(b""), "\\udcff was added"),
    "added inside": (lambda f: (f / "onnx" / ".git").write_bytes(b""), "onnx/.git was added"),
    "linked": (lambda f: link(f / "weights"), "weights is not a plain file"),
    "linked folder": (lambda f: (f / "more").symlink_to("/etc"), "more is not a plain file"),
    "pipe": (lambda f: os.mkfifo(f / "pipe"), "pipe is not a plain file"),
    "list removed": (lambda f: (f / MANIFEST).unlink(), f"{MANIFEST} is missing"),
    "list linked": (lambda f: link(f / MANIFEST), f"{MANIFEST} is missing"),
    "signature removed": (lambda f: (f / SIGNATURE).unlink(), f"{SIGNATURE} is missing"),
    "only the key left": (lambda f: [(f / name).unlink() for name in (MANIFEST, SIGNATURE)], f"{MANIFEST} is missing"),
    "key removed": (lambda f: (f / SIGNER).unlink(), f"{SIGNER} is not the key that signed"),
    "list edited": (lambda f: forge(f, "weights", "weight"), UNSIGNED_LIST),
    "path upwards": (lambda f: forge(f, "weights", "../weights"), "is not a list of files"),
    "absolute path": (lambda f: forge(f, "weights", "/etc/passwd"), "is not a list of files"),
    "same name twice": (lambda f: (f / MANIFEST).write_text((f / MANIFEST).read_text() * 2), "is not a list of files"),
    "not a list": (lambda f: (f / MANIFEST).write_bytes(b"\xff\x00" * 9), "is not a list of files"),
    "not a signature": (lambda f: (f / SIGNATURE).write_bytes(b"\xff" * 99), "is not an OpenSSH signature"),
    "empty signature": (lambda f: (f / SIGNATURE).write_bytes(b""), "is not an OpenSSH signature"),
    "short signature": (
        lambda f: (f / SIGNATURE).write_bytes(b"\n".join([signature._BEGIN, b"U1NIU0lHAAAAAQAA", signature._END])),
        "ends too early",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_found(folder, attack):
    change, fault = ATTACKS[attack]
    change(folder)
    found = check_folder(folder, RELEASE)
    assert not found.unsigned
    assert any(fault in one for one in (*found.file_faults, *found.signature_faults)), found


def test_a_changed_file_with_its_hash_put_in_the_list_has_no_signer(folder):
    forged = signature.hashlib.sha256(b"1235").hexdigest()
    forge(folder, signature.sha256_of(folder / "weights"), forged)
    (folder / "weights").write_bytes(b"1235")
    found = check_folder(folder, RELEASE)
    assert found.file_faults == ()
    assert (found.signer, found.signature_faults) == (None, (UNSIGNED_LIST,))


def test_the_signature_of_another_release_or_for_another_purpose_does_not_count(folder, tmp_path, key):
    another = tmp_path / "another"
    another.mkdir()
    (another / "weights").write_bytes(b"5678")
    sign_folder(another, key, RELEASE)
    shutil.copy(another / SIGNATURE, folder / SIGNATURE)  # replayed
    assert check_folder(folder, RELEASE).signer is None
    assert check_folder(another, BASE).signature_faults == (f"{SIGNATURE} was made for '{RELEASE}', not for '{BASE}'",)


def test_another_key_is_another_signer(folder, other_key, key):
    (folder / "weights").write_bytes(b"evil")
    sign_folder(folder, other_key, RELEASE)
    found = check_folder(folder, RELEASE)
    assert found.signer == signature.fingerprint(other_key.public_key()) != signature.fingerprint(key.public_key())


def test_what_git_and_downloads_add_is_named_and_not_a_fault(folder):
    (folder / ".gitattributes").write_bytes(b"")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_bytes(b"")
    found = check_folder(folder, RELEASE)
    assert found.not_signed == (".git", ".gitattributes")
    assert found.file_faults == found.signature_faults == ()


def test_a_folder_without_a_list_is_unsigned(tmp_path):
    (tmp_path / "weights").write_bytes(b"1234")
    assert check_folder(tmp_path, RELEASE) == signature.Signed(unsigned=True)


def test_the_owners_key_is_made_once_for_the_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    first = owner_key()
    path = keys.owner_key_file()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
    assert [each.name for each in path.parent.iterdir()] == ["owner.key"]
    keys._make_key(path)  # as a second process would
    assert owner_key().private_bytes_raw() == first.private_bytes_raw()


def test_keys_that_cannot_be_used_are_refused(tmp_path, monkeypatch):
    keys._make_key(tmp_path / "open.key")
    (tmp_path / "open.key").chmod(0o640)
    for name, contents, why in [("a", b"no key", "cannot read the key"), ("b", RSA, "cannot read the key")]:
        (tmp_path / name).write_bytes(contents)
        (tmp_path / name).chmod(0o600)
        with pytest.raises(SottoError, match=why):
            owner_key(tmp_path / name)
    with pytest.raises(SottoError, match="others may read or write"):
        owner_key(tmp_path / "open.key")
    with pytest.raises(SottoError, match="No such file"):
        owner_key(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(SottoError, match="cannot write the new key"):
        owner_key()


RSA = b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"


def test_a_folder_with_a_link_or_an_odd_name_is_not_signed(tmp_path, key):
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(SottoError, match="is not a plain file"):
        sign_folder(tmp_path, key, RELEASE)
    (tmp_path / "link").unlink()
    (tmp_path / "two words").write_bytes(b"")
    with pytest.raises(SottoError, match="name with other signs"):
        sign_folder(tmp_path, key, RELEASE)
    assert not (tmp_path / MANIFEST).exists()
