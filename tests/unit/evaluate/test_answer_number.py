"""The number that an answer ends with, for the reward and the task alike."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from stamm.evaluate.answer_number import answer_number

# Each a completion of a public report (lm-evaluation-harness 1204, 2552, 3214, 3254 and 3673, helm 4337,
# opencompass 2426, GSM8K, MGSM), shortened, or a form of writing.
READ = [
    ("the total cost of the order is $29.00.", "29"),
    ("The answer is 72, in total, so the farmer earns that much.", "72"),
    ("So the profit is $200,000 - $130,000 = $70,000.", "70000"),
    ("130,000\n#### 70000", "70000"),
    ("#### 5\n\nQuestion: next\nAnswer: 3+4=7\n#### 7", "7"),
    ("#### 72 clips in 2 months", "72"),
    ("#### 1,234.50 dollars in 2 months", "1234.5"),
    ("#### 007", "7"),
    ("#### 3.", "3"),
    ("#### $-3$", "-3"),
    ("#### **18**", "18"),
    ("#### Step 3\nso 18", "18"),
    ("#### 3. Total\nso 18", "18"),
    (r"the answer is \[ \boxed{\frac{1}{2}} \]", "1/2"),
    (r"\boxed{-\dfrac12}", "-1/2"),
    (r"\boxed{1\frac{1}{2}}", "3/2"),
    (r"\boxed{\$18}", "18"),
    (r"\boxed{18 \text{ eggs}} because 2 + 3", "18"),
    (r"\boxed{72 clips in 2 months}", "72"),
    (r"\boxed{x = 5}, of 9", "5"),
    (r"\boxed{70{,}000}", "70000"),
    (r"\boxed{- 7}", "-7"),
    (r"\boxed{90^\circ}", "90"),
    (r"\boxed{} holds the answer: 4", "4"),
    ("The temperature is \u22125 degrees.", "-5"),
    ("from -$5", "-5"),
    ("x=-5", "-5"),
    ("It takes 10-15 minutes, so at most 15", "15"),
    ("The answer is between 10-15", "15"),
    ("between 10\u201315", "15"),
    ("The answer is route-66", "66"),
    ("20-12=8", "8"),
    ("The days are 1,2,3", "3"),
    ("The options are 12,15", "15"),
    ("12,5 is not a group", "5"),
    ("1.5,2.5", "5/2"),
    ("0,5", "1/2"),
    ("Der Preis ist 1.234,50 Euro", "1234.5"),
    ("1.234.567", "1234567"),
    ("1,00,000", "100000"),
    ("It costs 12\u202f500 francs", "12500"),
    ("12 500", "12500"),
    ("12'500", "12500"),
    ("$1,000,000", "1000000"),
    ("so 25%.", "25"),
    ("a .5 b", "1/2"),
    ("about 1e6", "1000000"),
    ("1.5e-3", "0.0015"),
    (r"3 \times 10^{5}", "300000"),
    ("3 × 10^5", "300000"),
    ("3\u00bd", "7/2"),
    ("1 1/2", "3/2"),
    ("x^2 = 16", "16"),
    ("5 m^2", "5"),
    ("Area 12 m\u00b2", "12"),
    ("step \u2460: so 18", "18"),
    ("\u0989\u09a4\u09cd\u09a4\u09b0 \u09e7\u09ee", "18"),
    ("\u0e04\u0e33\u0e15\u0e2d\u0e1a\u0e04\u0e37\u0e2d \u0e51\u0e58", "18"),
    ("\u7b54\u3048\u306f\uff11\uff18\u3067\u3059", "18"),
    ("\u7b54\u6848\u662f70\uff0c000", "70000"),
    ("\u7b54\u6848(18)", "18"),
    ("3×10⁵", "300000"),
    ("5×10⁻³", "0.005"),
    ("10²", "100"),
    ("10**3", "1000"),
    ("6.02·10^23", "6.02e23"),
    (r"$5\text{ m}^{2}$", "5"),
    ("9.8 m/s2", "9.8"),
    ("5^{th}", "5"),
    ("3 million", "3000000"),
    (r"\boxed{1.5\text{ million}}", "1500000"),
    ("1 1/2 million", "1500000"),
    ("1.5k", "1500"),
    ("100 kids", "100"),
    ("€5,50", "5.5"),
    ("5,50 €", "5.5"),
    ("12,5 %", "12.5"),
    ("2,5 km", "2.5"),
    ("1,00", "1"),
    ("1 ½", "1.5"),
    ("−½", "-0.5"),
    ("-1½", "-1.5"),
    ("7,5 Mio", "7500000"),
    ("9.8 m s-2", "9.8"),
    ("1-1/2 cups", "1.5"),
    (r"\boxed{-(5)}", "-5"),
    ("negative 5", "-5"),
    ("it is minus 5", "-5"),
    ("7 minus 5", "5"),
    ("x = - 2", "-2"),
    ("-5--3", "-3"),
    ("1/-2", "-1/2"),
    ("1_000", "1000"),
    ("1.5e3kg", "1500"),
    ("The answer is 18. [1]", "18"),
    ("The answer is [18]", "18"),
    ("Of 20 it is __18__.", "18"),
    ("The answer is 5!", "5"),
    ("Step 3: 2 apples", "2"),
    ("Η απάντηση είναι 18 παιδιά", "18"),
]
NOT_UNDERSTOOD = [
    "", "none", "at 18:00", "on 3/4/2024", "version 1.2.3", "1/0", "1e99999", "9" * 5000, r"\frac{x}{2}",
    r"\boxed{\sqrt{2}}", r"\boxed{2\sqrt{3}}", r"\boxed{\pi} is 3", r"\boxed{3,4}", r"\boxed{2 + 3}",
    "2^{10}", r"\boxed{5!}", "√16", "4π", r"\boxed{10_2}", "10_{2}", r"\boxed{7=f(2)}", "3 : 2", "5±1",
    r"5 \pm 1", "5²", "2**3", "2^x", "(2+3)^2", "18¹", "5,0", "$5M", "3 million 500 thousand", "8-1/2",
]  # fmt: skip


@pytest.mark.parametrize(("text", "number"), READ)
def test_an_answer_ends_with_a_number(text: str, number: str) -> None:
    assert answer_number(text) == Fraction(number)


@pytest.mark.parametrize("text", NOT_UNDERSTOOD)
def test_what_is_not_understood_is_no_number(text: str) -> None:
    assert answer_number(text) is None


@pytest.mark.parametrize(
    "part", ["1,", "9", "{", "-", "1 ", "1/", r"\frac{", r"\boxed{", "1\ufffd"]
)
def test_hostile_answers_take_linear_time(part: str) -> None:
    begin = time.process_time()
    answer_number(part * (200_000 // len(part)))
    assert time.process_time() - begin < 2.0
