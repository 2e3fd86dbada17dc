"""What is known of each data set of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field

from emflow.datasets import formats
from emflow.datasets.formats import Parser


@dataclass(frozen=True)
class Partial:
    """A known file with only a part of the rows of a set.

    Parameters
    ----------
    stem : str
        Name of the file without its suffix.
    rows : int
        How many rows it has.
    checksum : str
        Of its values, as in `Spec`: it is recognised by this.
    note : str
        What part it is.
    """

    stem: str
    rows: int
    checksum: str
    note: str


@dataclass(frozen=True)
class Spec:
    """One data set of the paper.

    Parameters
    ----------
    name, title : str
        Our key for the set; the name it has at its source.
    paper_shape : tuple of int
        (rows, columns) in the paper; the shape of the training images for images.
    rows : int
        Rows that we have, or training images.
    columns : tuple of str
        The columns kept, in their order. Empty for images, and where they are not known.
    mar_rate : float or None
        Rate at which the last 30 % of the columns are missing at random in the paper's appendix; None for images.
    urls : tuple of str
        Public files; empty if there are none.
    licence : str
        As its source states it.
    parse : callable or None
        From the downloaded files, in the order of `urls`, to arrays.
    checksum : str or None
        SHA-256 of the content, by `store.table_checksum` or `store.images_checksum`. None if it is not known; shape
        and column names are checked then.
    target : str or None
        Column to predict. If it is not among `columns`, a file `<name>_target.parquet` holds it.
    note : str
        What differs from the paper, or is odd; empty if nothing.
    partial : Partial or None
        The part of the set that goes in its place where the whole is not there.
    """

    name: str
    title: str
    paper_shape: tuple[int, ...]
    rows: int
    columns: tuple[str, ...]
    mar_rate: float | None
    urls: tuple[str, ...]
    licence: str
    parse: Parser | None = field(repr=False)
    checksum: str | None
    target: str | None = None
    note: str = ""
    partial: Partial | None = None

    @property
    def images(self) -> bool:
        return len(self.paper_shape) > 2

    @property
    def suffix(self) -> str:
        return ".npz" if self.images else ".parquet"


def _uci(address: str) -> tuple[str, ...]:
    return (f"https://archive.ics.uci.edu/static/public/{address}.zip",)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CC_BY = "CC BY 4.0"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_MNIST_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")

_NEWS = (
    *_words("timedelta n_tokens_title n_tokens_content n_unique_tokens n_non_stop_words n_non_stop_unique_tokens"),
    *_words("num_hrefs num_self_hrefs num_imgs num_videos average_token_length num_keywords"),
    *(f"data_channel_is_{channel}" for channel in ("lifestyle", "entertainment", "bus", "socmed", "tech", "world")),
    *(f"kw_{outer}_{inner}" for inner in ("min", "max", "avg") for outer in ("min", "max", "avg")),
    *_words("self_reference_min_shares self_reference_max_shares self_reference_avg_sharess"),
    *(f"weekday_is_{day}day" for day in ("mon", "tues", "wednes", "thurs", "fri", "satur", "sun")),
    *_words("is_weekend LDA_00 LDA_01 LDA_02 LDA_03 LDA_04 global_subjectivity global_sentiment_polarity"),
    *_words("global_rate_positive_words global_rate_negative_words rate_positive_words rate_negative_words"),
    *(f"{which}_{sign}_polarity" for sign in ("positive", "negative") for which in ("avg", "min", "max")),
    *_words("title_subjectivity title_sentiment_polarity abs_title_subjectivity abs_title_sentiment_polarity shares"),
)
_AIR = _words(
    "CO(GT) PT08.S1(CO) NMHC(GT) C6H6(GT) PT08.S2(NMHC) NOx(GT) PT08.S3(NOx) NO2(GT) PT08.S4(NO2) PT08.S5(O3) T RH AH"
)
_LETTER = _words("x-box y-box width high onpix x-bar y-bar x2bar y2bar xybar x2ybr xy2br x-ege xegvy y-ege yegvx")
_CONCRETE = (
    "Cement (component 1)(kg in a m^3 mixture)",
    "Blast Furnace Slag (component 2)(kg in a m^3 mixture)",
    "Fly Ash (component 3)(kg in a m^3 mixture)",
    "Water  (component 4)(kg in a m^3 mixture)",
    "Superplasticizer (component 5)(kg in a m^3 mixture)",
    "Coarse Aggregate  (component 6)(kg in a m^3 mixture)",
    "Fine Aggregate (component 7)(kg in a m^3 mixture)",
    "Age (day)",
    "Concrete compressive strength(MPa, megapascals)",
)
_REVIEW = tuple(f"Category {i}" for i in range(1, 25))
_CREDIT = (
    *("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0"),
    *(f"PAY_{i}" for i in range(2, 7)),
    *(f"BILL_AMT{i}" for i in range(1, 7)),
    *(f"PAY_AMT{i}" for i in range(1, 7)),
)
_ENERGY = (
    *("Appliances", "lights"),
    *(f"{what}{i}" for i in range(1, 10) for what in ("T", "RH_")),
    *_words("T_out Press_mm_hg RH_out Windspeed Visibility Tdewpoint rv1 rv2"),
)
_CTG = _words("LB AC FM UC DL DS DP ASTV MSTV ALTV MLTV Width Min Max Nmax Nzeros Mode Mean Median Variance Tendency")
_SONG = (*(f"TimbreAvg{i}" for i in range(1, 13)), *(f"TimbreCovariance{i}" for i in range(1, 79)))
_SPAM = tuple(f"Cont {i}" for i in range(1, 58))
_WINE = (
    *("fixed acidity", "volatile acidity", "citric acid", "residual sugar", "chlorides", "free sulfur dioxide"),
    *("total sulfur dioxide", "density", "pH", "sulphates", "alcohol", "quality"),
)

_ALL = (
    Spec(
        "news", "Online News Popularity", (39644, 60), 39644, _NEWS, 0.35, _uci("332/online+news+popularity"), CC_BY,
        formats.headed(_NEWS, "OnlineNewsPopularity.csv"), None, target="shares",
        partial=Partial(
            "news", 23094, "4a9fc434f9c1022e3786cfb6f9a7cfd014e73dd165c340b28983c950218a8335",
            "58 % of the rows (23094 of 39644), to six digits, ordered by timedelta.",
        ),
    ),
    Spec(
        "air", "Air Quality", (9357, 13), 9357, _AIR, 0.62, _uci("360/air+quality"), CC_BY,
        formats.sheet(_AIR, "AirQualityUCI.xlsx", "openpyxl"),
        "5afe5ea7519808663b967b644f3fe23f64dea436eded8e1bcf8593c2f1dbb3eb",
        note="The code -200 of a missing reading (13.7 % of the cells) is kept as a value, as in the paper. "
        "Values are those of the Excel file, which the text file rounds.",
    ),
    Spec(
        "letter", "Letter Recognition", (19999, 16), 20000, _LETTER, 0.57, _uci("59/letter+recognition"), CC_BY,
        formats.headless("letter-recognition.data", 16, classes="ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        "7ebb0edf4bd7796b252b6f1fd9d56d51b80ee6241d948efad6509dfa21aa37d8", target="letter",
        note="20000 rows where the paper says 19999: probably its first row was taken for a header (an inference).",
    ),
    Spec(
        "concrete", "Concrete Compressive Strength", (1030, 9), 1030, _CONCRETE, 0.50,
        _uci("165/concrete+compressive+strength"), CC_BY, formats.sheet(_CONCRETE, "Concrete_Data.xls", "xlrd"),
        "62087b5f643b32fabe03ab8731bee630d140171687757229de14ec09fd43b96d",
    ),
    Spec(
        "review", "Travel Review Ratings", (5454, 24), 5454, _REVIEW, 0.49,
        _uci("485/tarvel+review+ratings"),  # the letters are in this order at the source
        CC_BY, formats.headed(_REVIEW, "google_review_ratings.csv"),
        "5ddb1a89a4b76338a07ab65780e7b7c8eb16b0d1b3ba1afd4e761a4de3bbaeea",
        note="The two malformed rows of the source are left out, which gives the number of rows in the paper.",
    ),
    Spec(
        "credit", "Default of Credit Card Clients", (30000, 23), 30000, _CREDIT, 0.30,
        _uci("350/default+of+credit+card+clients"), CC_BY,
        formats.sheet(_CREDIT, "default of credit card clients.xls", "xlrd", target="default payment next month"),
        "c0e7950c589540a39633e33737dcbb94d4ea4e6da86aff2a9b124d5603b2c81c", target="default",
    ),
    Spec(
        "energy", "Appliances Energy Prediction", (19735, 28), 19735, _ENERGY, 0.39,
        _uci("374/appliances+energy+prediction"), CC_BY, formats.headed(_ENERGY, "energydata_complete.csv"),
        "324190b25d5ae322a8494061de8bfcea141115f6a6dacbde815e04178b8550c8",
        note="The columns rv1 and rv2 are noise and identical: one fills the other exactly.",
    ),
    Spec(
        "ctg", "Cardiotocography", (2126, 21), 2126, _CTG, 0.29, _uci("193/cardiotocography"), CC_BY,
        formats.sheet(_CTG, "CTG.xls", "xlrd", "Data"),
        "db6a37d08856f0423e8ece387c4c1d08f949cfb93061081b0addef37b416577a",
    ),
    Spec(
        "song", "YearPredictionMSD", (92743, 90), 92743, _SONG, 0.32, _uci("203/yearpredictionmsd"), CC_BY,
        formats.headless("YearPredictionMSD.txt", 90, n_rows=92743), None,
        note="The paper's 92743 rows are one fifth of the 463715 training rows (an inference); which fifth is unknown, "
        "and the first 92743 rows stand for it.",
        partial=Partial(
            "song_head", 1176, "e90dc39299e0e860cd1b2b01d084de6c7602a2cd04c5c14e1c4ffdeaf5387584",
            "A fragment of 1176 rows where the paper has 92743, apparently the first of the source: no random sample.",
        ),
    ),
    Spec(
        "spam", "Spambase", (4601, 57), 4601, _SPAM, 0.30, _uci("94/spambase"), CC_BY,
        formats.headless("spambase.data", 57, first=0),
        "afec85e8370290e9854f8c0c08582bbcda06f5421a1e14cc75ff0ff61beddde1",
        note="Not in the paper; its MAR rate is ours.",
    ),
    Spec(
        "wine", "Wine Quality", (6497, 12), 6497, _WINE, 0.26, _uci("186/wine+quality"), CC_BY,
        formats.headed(_WINE, "winequality-red.csv", "winequality-white.csv", separator=";"),
        "6f6f973191ceab14bb0e3a5f627dfae24640b30cf3b7d1ab16b00ed79f6b9fda",
    ),
    Spec(
        "web", "Web", (58638, 550), 58638, (), 0.12, (), "not known", None, None,
        note="The set of 58638 rows and 550 columns that the paper calls Web has not been identified. Probably it is a "
        "subset of Kaggle's Web Traffic Time Series Forecasting, which has 550 daily columns (an inference).",
    ),
    Spec(
        "mnist", "MNIST", (60000, 28, 28), 60000, (), None, tuple(f"{_MNIST}/{file}-ubyte.gz" for file in _MNIST_FILES),
        "CC BY-SA 3.0, as commonly stated", formats.idx,
        "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
    ),
    Spec(
        "cifar10", "CIFAR-10", (50000, 32, 32, 3), 50000, (), None,
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), "none stated by its author", formats.cifar,
        "80387ddb9a0edf3fc4a964ee3770296169bb26a651050df20035579673099660",
    ),
)  # fmt: skip

SPECS: dict[str, Spec] = {spec.name: spec for spec in _ALL}
