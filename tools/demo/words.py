"""Word lists and the filler prose: everything random text is made of.

All randomness comes from the `random.Random` that is passed in, so a seed fixes the text.
"""
import string

FRUIT = "apple pear fig plum grape lemon mango peach cherry banana orange melon kiwi lime apricot coconut olive date berry papaya".split()
ANIMAL = "cat dog fox owl hen cow horse goat sheep mouse rabbit bear wolf deer otter heron crow swan duck frog whale seal badger beaver hedgehog squirrel turtle lizard spider ant bee moth eel trout salmon pigeon raven lynx camel donkey".split()
THING = ("lamp box key door chair table cup bowl spoon knife bottle basket ladder hammer rope wheel clock mirror window curtain "
         "blanket pillow candle lantern bell drum flute violin guitar camera radio kettle stove oven fridge shelf drawer safe "
         "locker trunk suitcase bag coat hat scarf glove boot shoe ring coin stamp letter book map pencil brush bucket broom "
         "shovel rake saw anchor sail boat wagon bicycle engine motor pump valve pipe tank cable switch button sensor robot "
         "drone statue painting vase carpet fountain gate bridge tower cabin tent barn mill kiosk crate barrel parcel").split()
COLOR = "red blue green yellow black white grey brown purple orange pink silver golden copper crimson violet amber teal".split()
ADJ = ("small large old new round square heavy light tall short wide narrow wooden iron glass paper plastic broken shiny dusty "
       "quiet loud warm cold dry wet empty full hidden lost secret strange simple plain striped painted rusty polished soft hard "
       "northern southern eastern western upper lower left right first second third last").split()
PLACE = ("kitchen garden cellar attic garage harbour market library station school museum park bakery workshop office hall bridge "
         "tower church square forest valley meadow beach island lake river mountain village castle farm barn stable cave tunnel "
         "theatre hospital factory warehouse airport cabin orchard vineyard lighthouse greenhouse courtyard balcony corridor").split()
CITY = ("Porto Rome Oslo Lima Cairo Paris Berlin Madrid Vienna Prague Dublin Lisbon Athens Sofia Riga Tallinn Helsinki Warsaw "
        "Zurich Geneva Milan Turin Naples Lyon Nice Bergen Malmo Tokyo Kyoto Osaka Seoul Delhi Mumbai Hanoi Manila Sydney Perth "
        "Boston Denver Austin Chicago Toronto Quebec Havana Quito Bogota Nairobi Lagos Accra Tunis Dakar Tallahassee London York").split()
NAME = ("Mira Tomas Anna Peter Lena Oskar Nina Karl Sofia Jonas Clara Felix Marta Hugo Ida Emil Vera Anton Elsa Bruno Alma Otto "
        "Greta Paul Rosa Simon Edith Viktor Julia Daniel Hanna Leon Maria David Sara Adam Eva Martin Laura Erik Lucia Ivan Olga "
        "Boris Tanya Ravi Priya Arjun Mei Chen Yuki Kenji Aiko Omar Layla Hassan Amina Kofi Ama Diego Carmen Pablo Luis Elena "
        "Alice Bob Carol Dave Emma Frank Grace Henry Irene Jack Kate Liam Molly Noah Olivia Quinn Ruth Sam Tina Uma Wendy Xavier Zoe").split()
JOB = "baker teacher doctor sailor farmer painter carpenter gardener pilot driver singer nurse clerk miller potter smith tailor guard cook fisher".split()
FOOD = "bread soup cheese rice pasta cake honey butter salad stew fish pie jam tea coffee milk juice porridge pancakes noodles".split()
VERB = "open close clean paint move lift check repair find carry watch count sell buy bring keep build draw read write".split()
MONTH = "January February March April May June July August September October November December".split()
DAY = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
COMMON = ("the a one two three four five six seven eight nine ten sun moon star rain snow wind cloud storm stone sand water fire "
          "tree leaf root branch flower grass seed bird hand foot eye ear nose heart day night week month year hour minute "
          "morning evening summer winter spring autumn house room wall roof floor street road path hill field sea coast wave ship "
          "train car plane bus music song dance story word line page number letter name question answer friend child mother "
          "father brother sister king queen yes no up down in out left right north south east west hello world good big little "
          "fast slow happy sad brave calm kind wise zebra yellow young under over table quick jump lazy").split()
WORDS = sorted(set(FRUIT + ANIMAL + THING + COLOR + ADJ + PLACE + FOOD + VERB + COMMON))
UNICODE = ("café déjà über Grüße straße naïve façade jalapeño niño mañana żółw łódź čaj smørbrød ångström привет мир γειά κόσμε "
           "日本語 東京 你好 世界 한국어 안녕 🙂 🚀 🦙 🐢 🌍 ❤ ☃ ½ € £ ° – — … “ ” ‘ ’ « » ¿ ¡ ± × ÷ → ← ∑ π Ω µ").split()

_ONSET = "b c d f g h j k l m n p r s t v w z br cr dr fr gr kr pr tr bl cl fl gl pl sl st sh ch th sk sp".split()
_VOWEL = "a e i o u a e i o ai ea ee ia io oo ou".split()
_CODA = ["", "", "", "n", "r", "l", "s", "t", "m", "k", "nd", "rt", "x", "sh", "ck"]


def syllables(r, n=2):
    return "".join(r.choice(_ONSET) + r.choice(_VOWEL) + (r.choice(_CODA) if i == n - 1 else "") for i in range(n))


hard = 0.1      # share of numbers and keys that are easy to mix up; later training raises it


def person(r):
    return r.choice(NAME) if r.random() < 0.5 else syllables(r, r.choice((2, 2, 3))).capitalize()


def people(r):
    """A function that makes the names of one document; some documents have names that are much alike."""
    if r.random() >= hard:
        return person
    parts = [syllables(r, 1) for _ in range(4)]
    return lambda r: "".join(r.choice(parts) for _ in range(r.choice((2, 2, 3)))).capitalize()


def digits(r, n=None):
    if n is None and r.random() < hard:     # long, or of few different digits: where is one in such a number?
        few = [r.choice("123456789")] + r.sample("0123456789", r.choice((1, 2, 2, 9)))
        return few[0] + "".join(r.choice(few) for _ in range(r.choice((1, 2, 3, 3, 4, 5, 6, 7, 9))))
    n = n or r.choice((4, 4, 4, 4, 3, 5, 6, 2))
    return str(r.randrange(1, 10)) + "".join(r.choice("0123456789") for _ in range(n - 1))


def mixed(r):
    """An identifier: letters and digits in no order."""
    k = r.random()
    if k < 0.4:
        return r.choice(string.ascii_uppercase) + digits(r, r.choice((1, 2, 3)))
    if k < 0.6:
        return r.choice(WORDS) + r.choice("-_") + digits(r, r.choice((1, 2, 3)))
    if k < 0.8:
        return "".join(r.choice(string.ascii_uppercase + string.digits) for _ in range(r.choice((4, 5, 6))))
    return "".join(r.choice("0123456789abcdef") for _ in range(r.choice((4, 6, 8))))


def thing(r):
    k = r.random()
    if k < 0.55:
        return r.choice(COLOR) + " " + r.choice(THING)
    if k < 0.85:
        return r.choice(ADJ) + " " + r.choice(THING + ANIMAL)
    return r.choice(ADJ) + " " + r.choice(COLOR) + " " + r.choice(THING)


def things(r):
    """The same as `people` for things."""
    if r.random() >= hard:
        return thing
    kinds, nouns = r.sample(COLOR + ADJ, 4), r.sample(THING, 4)
    return lambda r: r.choice(kinds) + " " + r.choice(nouns)


def some_words(r, n):
    k = r.random()
    if k < 0.7:
        return [r.choice(WORDS) for _ in range(n)]
    if k < 0.85:
        return [person(r) for _ in range(n)]
    return [syllables(r, r.choice((1, 2, 3))) for _ in range(n)]


# ---- filler prose -------------------------------------------------------------------------------
# Slots: N name, T thing, Z animal, P place, C city, J job, F food, V verb, D day, M month, X adjective,
# K colour, # a small number.

_PROSE = """
N walked slowly to the P and sat down near the old T.
In the morning the J opened the P, and the smell of F filled the street.
The Z slept under the X T while the rain fell on the P.
On D, N and N went to the P to buy F and a new T.
Nobody in C had seen such a X T before.
The K T stood in a corner of the P for # years.
"It will rain before D," said the J, and looked at the sky.
A X Z crossed the road near the P and vanished behind the T.
N likes F with F, but N prefers plain F.
The road from C to C passes a P and a X T.
In M the days are long and the P is full of people.
The J told N that the T was too heavy to carry.
Every D the children of the village play near the P.
There was a T on the table, and next to it lay a X T.
N wrote a long letter about the P in C.
The wind moved the leaves, and a Z called from the P.
It took # days to repair the T after the storm.
The old J had worked in the P since he was # years old.
N asked the J for F, but there was only F left.
From the window one could see the P, the river and a K T.
A boat came up the river in the evening with # barrels of F.
The Z and the Z shared the X P through the winter.
N put the T back on the shelf and closed the door.
The people of C are proud of their P and of their F.
When the bell rang, the J left the P without a word.
It was a quiet evening in M, and nothing moved in the P.
The T was made of wood, and its handle was painted K.
N counted the steps to the P: there were # of them.
After lunch the J usually sleeps for an hour near the T.
The bus to C leaves the P at # every morning.
A small Z sat on the X T and watched the J.
N had never been to C, but knew every story about it.
The P was cold, so N lit a fire and made some F.
Two Z tracks led from the P to the river.
The market sells F, F and sometimes a X T.
On the wall hung a picture of the P in M.
N and the J talked about the weather for a while.
The K paint on the T was still wet.
Last M the P was closed because of the snow.
The T belonged to a J who had moved to C.
Near the P there is a X garden with # trees.
The train stopped in C, and N went to find some F.
Some say that the Z of the P brings good luck.
N learned to V the T in less than # weeks.
The J wanted to V the K T before D.
It is not easy to V a T in the dark.
The river was high, so the J could not reach the P.
All night the Z kept walking around the P.
N smiled, took the T and went home.
The soup was too hot, so N waited and looked at the T.
""".strip().split("\n")

_SLOT = {"N": lambda r: person(r), "T": lambda r: r.choice(THING), "Z": lambda r: r.choice(ANIMAL),
         "P": lambda r: r.choice(PLACE), "C": lambda r: r.choice(CITY), "J": lambda r: r.choice(JOB),
         "F": lambda r: r.choice(FOOD), "V": lambda r: r.choice(VERB), "D": lambda r: r.choice(DAY),
         "M": lambda r: r.choice(MONTH), "X": lambda r: r.choice(ADJ), "K": lambda r: r.choice(COLOR),
         "#": lambda r: str(r.randrange(2, 60))}
_PARTS = []
for _line in _PROSE:
    _parts, _i = [], 0
    while _i < len(_line):
        alone = (_i == 0 or not _line[_i - 1].isalpha()) and (_i + 1 == len(_line) or not _line[_i + 1].isalpha())
        if _line[_i] in _SLOT and alone:
            _parts.append(_SLOT[_line[_i]])
        else:
            _parts.append(_line[_i])
        _i += 1
    _merged = []
    for _p in _parts:
        if isinstance(_p, str) and _merged and isinstance(_merged[-1], str):
            _merged[-1] += _p
        else:
            _merged.append(_p)
    _PARTS.append(_merged)

_PLAIN = """
The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
The quick brown fox jumps over the lazy dog.
Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua.
It was a calm day and nothing of interest happened.
This sentence is only here to fill the page.
One step follows another, and the road goes on.
""".strip().split("\n")


def sentence(r):
    """One sentence of the fluent domain: a small world of villages, animals and tools."""
    return "".join(p if isinstance(p, str) else p(r) for p in r.choice(_PARTS))


def filler(r):
    """A function that makes one filler unit at a time, and the separator: one style per document."""
    k = r.random()
    if k < 0.72:
        return (lambda: sentence(r)), r.choice((" ", " ", " ", "\n", "\n\n"))
    if k < 0.80:
        s = r.choice(_PLAIN)
        return (lambda: s), r.choice((" ", "\n"))
    if k < 0.85:
        return (lambda: " ".join(r.choice(WORDS) for _ in range(12)) + "."), " "
    if k < 0.89:
        return (lambda: " ".join(syllables(r, r.choice((1, 2, 3))) for _ in range(10)).capitalize() + "."), " "
    if k < 0.93:
        n = [r.randrange(1, 100)]

        def line():
            n[0] += 1
            return f"Line {n[0]}: {sentence(r)}"
        return line, "\n"
    if k < 0.97:
        levels = ("INFO", "DEBUG", "WARN")
        return (lambda: f"{digits(r, 2)}:{digits(r, 2)} {r.choice(levels)} the {r.choice(THING)} in the "
                        f"{r.choice(PLACE)} is {r.choice(ADJ)}"), "\n"
    return (lambda: " ".join(str(r.randrange(1000)) for _ in range(14)) + "."), " "


# ---- little stories -----------------------------------------------------------------------------

def story(r, hero, place=None):
    """Five or six simple sentences about an animal or a person."""
    p, t, f, helper = place or r.choice(PLACE), r.choice(THING), r.choice(FOOD), r.choice(ANIMAL)
    k, goal = r.choice(COLOR), r.choice(("find", "repair", "carry", "paint"))
    return (f"Once upon a time there was a {hero} who lived near the {p}. One morning the {hero} wanted to {goal} a {k} {t}. "
            f"It was hard work, and the {hero} grew tired. Then a friendly {helper} came along with some {f}. "
            f"They ate together, and in the evening the {hero} and the {helper} did it at last. "
            f"From that day on they were friends.")
