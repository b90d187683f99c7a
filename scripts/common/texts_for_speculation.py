"""Texts for measurements of speculation: some repeat earlier text, and some are hard to predict.

Written for this project.
"""

_LETTER = (
    "Dear Ms. Okafor, thank you for visiting our workshop on Tuesday. We have inspected the two pumps you left. "
    "The smaller one needs a new seal and a bearing, which we have in stock. The larger one has a cracked housing, and "
    "we advise replacing it, because a repair would cost more than a new pump. Please tell us by Friday whether we "
    "should order the part. Our workshop is open from eight to five, and closed on Sundays. Yours sincerely, Jonas Reed"
)
_RECIPE = (
    "Peel the potatoes and cut them into thin slices. Heat the oil in a wide pan and fry the onions until they are "
    "golden. Add the potatoes, salt and pepper, and cover the pan. Cook for twenty minutes over low heat and stir now "
    "and then. Beat six eggs in a bowl, pour them over the potatoes, and cook for five minutes more. Turn the omelette "
    "with the help of a plate, and cook the other side for three minutes. Let it rest before you cut it."
)
_CODE = """def read_rows(path, separator=","):
    rows = []
    with open(path) as file:
        for number, line in enumerate(file, start=1):
            fields = line.strip().split(separator)
            if len(fields) != 4:
                raise ValueError(f"line {number}: expected 4 fields, found {len(fields)}")
            name, amount, price, date = fields
            rows.append({"name": name, "amount": int(amount), "price": float(price), "date": date})
    return rows


def total(rows):
    result = 0.0
    for row in rows:
        result += row["amount"] * row["price"]
    return result
"""
_TABLE = """city,country,population,area
Lisbon,Portugal,567131,100
Porto,Portugal,231800,41
Madrid,Spain,3332035,604
Seville,Spain,684025,140
Lyon,France,522228,48
Nantes,France,323204,65
Turin,Italy,841600,130
Genoa,Italy,558745,240
Graz,Austria,298479,128
Linz,Austria,210165,96
"""
_RULES = (
    "1. Members may borrow five books at a time. 2. Books are lent for four weeks. 3. A loan can be extended twice, "
    "unless another member has reserved the book. 4. For each day that a book is late the fee is ten cents. 5. Lost "
    "books are replaced at the price of a new copy. 6. The reading room is open to everybody. 7. Food and drinks are "
    "not allowed in the reading room. 8. Dogs wait outside. 9. Printers may be used for two cents a page."
)
_NEWS = (
    "The town council decided on Monday to close the old bridge for repairs. Work will begin in March and take about "
    "seven months. During this time buses will cross the river by the northern bridge, and a ferry will carry people, "
    "bicycles from early in the morning until midnight. Shops near the old bridge fear for their customers. The mayor "
    "said that the bridge had carried twice the load for which it was built, and that waiting any longer was dangerous."
)

# Chat prompts whose answers repeat most of a text.
QUOTES = tuple(
    f"{task}\n\n{text}"
    for task, text in (
        ("Copy this letter word by word.", _LETTER),
        ("Copy this letter and write Mr. Silva instead of Ms. Okafor.", _LETTER),
        ("Repeat this recipe exactly as it is.", _RECIPE),
        ("Repeat this recipe with eight eggs instead of six.", _RECIPE),
        ("Write this Python code again without any change.", _CODE),
        ("Rename the function total to total_price, and print the whole Python code.", _CODE),
        ("Print this table again.", _TABLE),
        ("Print this table again with semicolons instead of commas.", _TABLE),
        ("List these rules again, one on each line.", _RULES),
        ("Quote this article in full, then say in one sentence what it is about.", _NEWS),
    )
)

# Chat prompts whose answers, sampled at a high temperature, repeat hardly anything.
OPEN_ENDS = (
    "Write a poem in which no word appears twice.",
    "Make up forty names for planets, each of another sound.",
    "Tell a story that changes its subject in every sentence.",
    "List words that have nothing to do with each other.",
    "Describe a dream in which everything becomes something else.",
    "Invent a language and write a paragraph in it, without a translation.",
)
