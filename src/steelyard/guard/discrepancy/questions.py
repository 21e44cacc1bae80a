"""Questions written for this project, so that the quick profile needs no download: passages of invented facts.

Nothing here is known from elsewhere: who answers right has read the passage. Of the four questions of a passage the
first two can be copied from one place; the third needs the right one of several candidates, the fourth a small step of
reasoning, so that a small model gets some right and some wrong.
"""

from __future__ import annotations

from typing import NamedTuple


class Passage(NamedTuple):
    """A context with questions and their answers, each answer a part of the context."""

    context: str
    questions: tuple[tuple[str, str], ...]


PASSAGES = (
    Passage(
        "The lighthouse on Corbel Island was built by Marta Dunning in 1874. Its lamp burned whale oil until 1902, "
        "when a keeper named Piet Hollis replaced it with a paraffin burner. A storm destroyed the north stair in "
        "1931, and the council of Saltmere paid for the repair.",
        (
            ("Who built the lighthouse on Corbel Island?", "Marta Dunning"),
            ("Which town's council paid for the repair?", "Saltmere"),
            ("In which year was the north stair destroyed?", "1931"),
            ("What did the lamp burn in 1890?", "whale oil"),
        ),
    ),
    Passage(
        "The Ondrel bakery in Varnholt sells three kinds of bread: rye on Mondays, barley on Wednesdays and oat on "
        "Saturdays. The oven was bought from a monastery in Teal for ninety crowns. Lena Ondrel opens the shop at five "
        "in the morning, and her brother Jory closes it at two in the afternoon.",
        (
            ("In which town is the Ondrel bakery?", "Varnholt"),
            ("From what was the oven bought?", "a monastery in Teal"),
            ("Who closes the shop?", "Jory"),
            ("Which bread can be bought two days after the rye bread?", "barley"),
        ),
    ),
    Passage(
        "The red marsh vole of the Kessin delta eats the roots of water mint. It has two litters a year, the larger "
        "one in April. Its only predator there is the grey harrier; the pine marten, which hunts it further north, "
        "does not cross the river Ulm. The zoologist Ada Brandt first described the vole in 1956.",
        (
            ("What does the red marsh vole eat?", "the roots of water mint"),
            ("Who first described the vole?", "Ada Brandt"),
            ("Which animal hunts the vole in the delta?", "the grey harrier"),
            ("Which river keeps the pine marten away from the delta?", "the river Ulm"),
        ),
    ),
    Passage(
        "Line 7 of the Brenning tramway runs from the harbour to Elm Park and takes twenty minutes. Line 9 starts at "
        "the harbour as well, but ends at the old brickworks after thirty-five minutes. Both lines use the blue cars "
        "that the firm of Osgood and Reye delivered in 1988.",
        (
            ("Where does line 7 end?", "Elm Park"),
            ("Which firm delivered the blue cars?", "Osgood and Reye"),
            ("How long does line 9 take?", "thirty-five minutes"),
            ("At which stop can passengers change between the two lines?", "the harbour"),
        ),
    ),
    Passage(
        "The opera The Glass Ferryman was written by Tomas Liddel in eleven weeks. It was first sung in Perrin on "
        "3 March 1911, with Clara Voss in the part of the widow. The ferryman was to be sung by Emil Hart, who fell "
        "ill; the stage painter Ruben Sacks sang in his place.",
        (
            ("Who wrote The Glass Ferryman?", "Tomas Liddel"),
            ("Where was the opera first sung?", "Perrin"),
            ("Who sang the part of the widow?", "Clara Voss"),
            ("Who sang the ferryman on 3 March 1911?", "Ruben Sacks"),
        ),
    ),
    Passage(
        "In the village of Hallow Ford, houses with green doors belong to weavers and houses with black doors to "
        "smiths. The mill has a white door. Nora Penn, the oldest weaver, teaches the children to spin flax, and "
        "every autumn the smiths give her a new pair of shears.",
        (
            ("What does Nora Penn teach the children?", "to spin flax"),
            ("What do the smiths give her every autumn?", "a new pair of shears"),
            ("Which colour is the door of the mill?", "white"),
            ("Which colour is the door of Nora Penn's house?", "green"),
        ),
    ),
    Passage(
        "The alloy tessonite contains copper, nickel and a trace of silver. It melts at 840 degrees and was invented "
        "by the brothers Hugo and Alban Wirth, who sold the patent to the Lorne Clock Company. Clock springs of "
        "tessonite do not rust, but they break more easily than springs of steel.",
        (
            ("At what temperature does tessonite melt?", "840 degrees"),
            ("To whom was the patent sold?", "the Lorne Clock Company"),
            ("Of which metal is there only a trace in tessonite?", "silver"),
            ("Which springs break less easily than those of tessonite?", "springs of steel"),
        ),
    ),
    Passage(
        "Captain Irene Falk left Dorrow with three ships: the Heron, the Tern and the Plover. The Tern was lost in fog "
        "near Cape Anning. The Plover turned back with a broken mast. Only the Heron reached the Amber Coast, after "
        "sixty-one days, and brought home pepper and blue dye.",
        (
            ("From where did Captain Falk leave?", "Dorrow"),
            ("What did the captain bring home?", "pepper and blue dye"),
            ("Which ship was lost in fog?", "the Tern"),
            ("Which ship came back without having reached the Amber Coast?", "the Plover"),
        ),
    ),
    Passage(
        "The library of Quill Street lends books for three weeks and films for four days. Fines are two cents a day "
        "for books and fifty cents a day for films. Members under twelve pay no fines. The reading room, which was "
        "given by the painter Olga Marsh, is open on Sundays only.",
        (
            ("Who gave the reading room?", "the painter Olga Marsh"),
            ("For how long are books lent?", "three weeks"),
            ("What is the fine for films?", "fifty cents a day"),
            ("On which day can one read in the reading room?", "Sundays"),
        ),
    ),
    Passage(
        "Mount Serren is 2,940 metres high, Mount Alder 2,610 metres and Mount Crake 3,105 metres. The first climber "
        "on Mount Serren was the surveyor Felix Brandt, in 1868. Mount Crake was not climbed before 1903, when Ines "
        "Holm went up its south face with two guides from Lower Teasel.",
        (
            ("Who first climbed Mount Serren?", "the surveyor Felix Brandt"),
            ("From where were the two guides?", "Lower Teasel"),
            ("How high is Mount Alder?", "2,610 metres"),
            ("Which of the three mountains is the highest?", "Mount Crake"),
        ),
    ),
    Passage(
        "The painter Jonas Reed used only four pigments: lead white, ochre, madder red and bone black. His largest "
        "picture, The Flooded Orchard, hangs in the town hall of Embry. He painted it for the miller Walter Cobb, who "
        "refused it because the trees were red; the town bought it for the price of a cow.",
        (
            ("Where does The Flooded Orchard hang?", "the town hall of Embry"),
            ("For what price did the town buy the picture?", "the price of a cow"),
            ("For whom did Reed paint the picture?", "the miller Walter Cobb"),
            ("Which pigment gave the trees their colour?", "madder red"),
        ),
    ),
    Passage(
        "At the Tolley observatory the comet was seen on 9 May by Hana Birk, two nights before the observatory of "
        "Montane reported it. The newspapers named it Comet Montane all the same. Its tail was yellow, and it was "
        "last seen on 30 June, low above the western hills.",
        (
            ("Who saw the comet on 9 May?", "Hana Birk"),
            ("Which colour was the tail of the comet?", "yellow"),
            ("When was the comet last seen?", "30 June"),
            ("Which observatory saw the comet later?", "the observatory of Montane"),
        ),
    ),
    Passage(
        "The game of stell is played by two players with nineteen stones and a bowl. Each player takes one, two or "
        "three stones in turn, and whoever takes the last stone washes the bowl. It comes from the valley of Orne, "
        "where it is played on the evening before a wedding.",
        (
            ("With how many stones is stell played?", "nineteen"),
            ("From where does the game come?", "the valley of Orne"),
            ("When is the game played in the valley?", "on the evening before a wedding"),
            ("What must the loser of the game do?", "washes the bowl"),
        ),
    ),
    Passage(
        "Doctor Selma Ruiz treated river fever with the bark of the corran tree. Of forty patients in the ward, "
        "thirty-one recovered within nine days. Her assistant Otto Lang kept the records; the bark was bought from a "
        "trader in Minnow Bay, who asked a silver coin a basket.",
        (
            ("What did Doctor Ruiz use against river fever?", "the bark of the corran tree"),
            ("Who kept the records?", "Otto Lang"),
            ("What did the trader ask for the bark?", "a silver coin a basket"),
            ("How many of the patients recovered within nine days?", "thirty-one"),
        ),
    ),
    Passage(
        "The bridge at Wexcombe has five arches of granite and one of brick. The brick arch was added in 1820 by the "
        "mason Seth Yarrow after a barge had struck the eastern pier. Carts pay a toll of one penny, riders a "
        "halfpenny; people on foot cross free of charge.",
        (
            ("Who added the brick arch?", "the mason Seth Yarrow"),
            ("What had struck the eastern pier?", "a barge"),
            ("What toll do riders pay?", "a halfpenny"),
            ("Of which stone are most of the arches?", "granite"),
        ),
    ),
    Passage(
        "The Pallard orchestra rehearses in a former tannery. Its conductor, Beatrix Noll, seats the cellos on the "
        "left and the horns behind the violas. The first concert of the season is always given for the sailors' fund, "
        "the last one for the school of the blind in Garrow Lane.",
        (
            ("Who conducts the Pallard orchestra?", "Beatrix Noll"),
            ("Where does the orchestra rehearse?", "a former tannery"),
            ("For what is the last concert of the season given?", "the school of the blind"),
            ("Which instruments sit in front of the horns?", "the violas"),
        ),
    ),
    Passage(
        "Wheat is sown in Dellmoor in October, beans in March and hemp in May. The farmers leave every fourth field "
        "fallow. In 1779 a late frost killed the beans, and Count Arno Sill opened his granary at Fenwick for three "
        "months without asking for payment.",
        (
            ("Who opened his granary?", "Count Arno Sill"),
            ("What killed the beans in 1779?", "a late frost"),
            ("In which month is hemp sown?", "May"),
            ("Which crop is sown in spring before the hemp?", "beans"),
        ),
    ),
    Passage(
        "The mechanical duck of Ludo Ferris could walk, swim and quack, but not eat. It was shown in Orbach in 1790 "
        "and sold to a Baroness Tiel, whose nephew took it apart. The wheels are kept in a cigar box in the museum of "
        "Harl; the feathers were lost.",
        (
            ("To whom was the duck sold?", "Baroness Tiel"),
            ("In what are the wheels kept?", "a cigar box"),
            ("Who took the duck apart?", "nephew"),
            ("Which part of the duck was lost?", "the feathers"),
        ),
    ),
    Passage(
        "The swimming club of Aldous Lake has 240 members, of whom 60 are children. Training is on Tuesdays for the "
        "children and on Thursdays for everyone else. The club's record over the length of the lake, fifty-two "
        "minutes, is held by the postman Karl Edda.",
        (
            ("Who holds the club's record?", "the postman Karl Edda"),
            ("How many members does the club have?", "240"),
            ("On which day do the children train?", "Tuesdays"),
            ("How long did the postman need for the length of the lake?", "fifty-two minutes"),
        ),
    ),
    Passage(
        "A letter from Nethery to Stowe took four days by coach and two days by river boat. The boat did not "
        "run from December to February, when the Lanner was frozen. Postmaster Gideon Frye therefore kept nine spare "
        "horses at the inn of the Three Larks.",
        (
            ("Who kept nine spare horses?", "Postmaster Gideon Frye"),
            ("Where were the spare horses kept?", "the inn of the Three Larks"),
            ("How long did a letter take by river boat?", "two days"),
            ("How did letters travel from Nethery to Stowe in January?", "by coach"),
        ),
    ),
    Passage(
        "The dialect of Upper Sarn has no word for blue; people there say the colour of slate or the colour of "
        "plums. The teacher Mina Roth collected nine hundred words in it between 1922 and 1930. Her notebooks were "
        "found in a hay barn by her grandson Lukas, a baker.",
        (
            ("Who collected words of the dialect?", "Mina Roth"),
            ("Where were the notebooks found?", "a hay barn"),
            ("How many words were collected?", "nine hundred"),
            ("What was the trade of the teacher's grandson?", "a baker"),
        ),
    ),
    Passage(
        "The well of Saint Orla is forty metres deep, the well in the market only twelve. In the dry summer of 1846 "
        "the market well failed in June. Water from Saint Orla was then sold by the sisters Ruth and Dinah Cole, who "
        "carried it in copper jars for a farthing a jar.",
        (
            ("Who sold water from Saint Orla?", "the sisters Ruth and Dinah Cole"),
            ("What did a jar of water cost?", "a farthing"),
            ("How deep is the well of Saint Orla?", "forty metres"),
            ("Which well failed in the summer of 1846?", "the market well"),
        ),
    ),
    Passage(
        "The kite makers of Yarrow Hill glue silk on frames of split willow. A war kite has a red tail, a wedding "
        "kite a white one and a mourning kite none. Master Ansel Pike flew the largest, nine metres wide, from the "
        "tower of Saint Bride on the first day of spring.",
        (
            ("From where did Ansel Pike fly the largest kite?", "the tower of Saint Bride"),
            ("What do the kite makers glue on the frames?", "silk"),
            ("Which colour is the tail of a wedding kite?", "white"),
            ("What kind of kite has no tail?", "a mourning kite"),
        ),
    ),
    Passage(
        "The census of Port Lisle in 1701 counted 812 people, 96 cows and one elephant. The elephant, called Duchess, "
        "belonged to the rope maker Simon Gall, who had won it at cards from a Portuguese captain. It turned the "
        "great wheel of the rope walk until 1719.",
        (
            ("What was the elephant called?", "Duchess"),
            ("From whom had the rope maker won the elephant?", "a Portuguese captain"),
            ("How many cows were counted?", "96"),
            ("What work did the elephant do?", "turned the great wheel of the rope walk"),
        ),
    ),
)
