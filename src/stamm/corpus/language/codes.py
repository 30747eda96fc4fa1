"""ISO 639-3 codes for two-letter language codes and for those of CLD2."""

from __future__ import annotations

from typing import Final

UNDETERMINED: Final = "und"

# ISO 639-1; macrolanguages as their standard form, and the old codes that CLD2 keeps (iw, jw).
# Source: the code tables of ISO 639-3 (SIL International), and CLD2's list of languages.
_CODES = (
    "aa:aar ab:abk af:afr ak:aka am:amh ar:arb as:asm ay:ayr az:azj ba:bak be:bel bg:bul bh:bho "
    "bi:bis bn:ben bo:bod br:bre bs:bos ca:cat co:cos cs:ces cy:cym da:dan de:deu dv:div dz:dzo "
    "ee:ewe el:ell en:eng eo:epo es:spa et:est eu:eus fa:pes fi:fin fj:fij fo:fao fr:fra fy:fri "
    "ga:gle gd:gla gl:glg gn:gug gu:guj gv:glv ha:hau he:heb hi:hin hr:hrv ht:hat hu:hun hy:hye "
    "ia:ina id:ind ie:ile ig:ibo ik:ipk is:isl it:ita iu:ike iw:heb ja:jpn jv:jav jw:jav ka:kat "
    "kk:kaz kl:kal km:khm kn:kan ko:kor ks:kas ku:kmr ky:kir la:lat lb:ltz lg:lug ln:lin lo:lao "
    "lt:lit lv:lav mg:plt mi:mri mk:mkd ml:mal mn:khk mr:mar ms:zsm mt:mlt my:mya na:nau nb:nob "
    "ne:npi nl:nld nn:nno no:nob nr:nbl ny:nya oc:oci om:gaz or:ory os:oss pa:pan pl:pol ps:pbt "
    "pt:por qu:quz rm:roh rn:run ro:ron ru:rus rw:kin sa:san sd:snd sg:sag si:sin sk:slk sl:slv "
    "sm:smo sn:sna so:som sq:als sr:srp ss:ssw st:sot su:sun sv:swe sw:swh ta:tam te:tel tg:tgk "
    "th:tha ti:tir tk:tuk tl:tgl tn:tsn to:ton tr:tur ts:tso tt:tat tw:aka ug:uig uk:ukr ur:urd "
    "uz:uzn ve:ven vi:vie vo:vol wo:wol xh:xho yi:ydd yo:yor za:zha zh:cmn zu:zul"
)
# CLD2 has one Quechua; the ISO 639-3 codes of the Quechuan languages begin with these.
CLD2_QUECHUA: Final = "quz"
QUECHUAN: Final = ("qu", "qv", "qw", "qx")
_THREE_LETTERS: Final = dict(pair.split(":") for pair in _CODES.split())
# The first of several two-letter codes; no: nn and nb are the written standards.
_TWO_LETTERS: Final = {
    three: two for two, three in reversed(_THREE_LETTERS.items()) if two not in ("iw", "jw", "no")
}
_CLD2 = {"zh-Hant": "cmn", "sr-ME": "srp"}
# Second codes of a language in the texts used here.
_SAME = {"nep": "npi", "fry": "fri", "ekk": "est", "lvs": "lav"}


def to_iso639_3(code: str) -> str:
    """The ISO 639-3 code for a code of two or three lower-case letters; "" when unknown."""
    if len(code) == 2:
        return _THREE_LETTERS.get(code, "")
    return _SAME.get(code, code) if len(code) == 3 else ""


def to_iso639_1(code: str) -> str:
    """The two-letter code for a code of ISO 639-3; `code` itself when there is none."""
    return _TWO_LETTERS.get(_SAME.get(code, code), code)


def cld2_code(code: str) -> str:
    """The ISO 639-3 code for one of CLD2's; "" for its jokes and for unnamed scripts."""
    if code in _CLD2:
        return _CLD2[code]
    joke = code.startswith("zz") or code in ("xxx", "tlh")
    return "" if joke else to_iso639_3(code)
