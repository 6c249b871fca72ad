"""Ordinary words for the deceptive obfuscation: they mean something, but not what they are made to stand for."""

# ruff: noqa: SIM905  (lists of words are easier to read as text)

VERBS = tuple(
    """admire apologise applaud attack bake balance bargain borrow breathe bury celebrate chase comfort compose confess
    conquer cook dance decorate deny dissolve doubt dream escape explain fasten feast fold forgive freeze gamble grow
    guess harvest hesitate hide hum imitate improvise inherit invent juggle knit laugh linger listen melt mend mourn
    negotiate obey overcome paint persuade plough polish pretend promise punish question rehearse rejoice remember
    rescue scatter scold shiver sing sleep smuggle sneeze starve stumble succumb surrender swim teach thank threaten
    translate vanish wander weave whisper wonder yawn yield""".split()
)
"""For actions."""

STATES = tuple(
    """abundant amused ancient anxious awake barren bitter blessed brave brittle calm careless cheerful clever clumsy
    cruel curious damp dazzled devoted distant drowsy eager elegant envious exhausted faithful famous fearful fertile
    fragile friendly gentle gloomy graceful grateful guilty haunted hollow honest humble hungry idle innocent jealous
    joyful lonely loyal lucky merciful mighty modest mysterious narrow nervous noble obedient pale patient peaceful
    playful pleased poisonous proud quiet reckless restless ripe sacred salty scarce secret selfish serious shallow
    silent sincere sleepy slippery solemn stubborn tame tender thirsty timid tired trusted vague wealthy weary wicked
    wild wise worried young zealous""".split()
)
"""For predicates."""

NOUNS = tuple(
    """acorn almond anchor anthem apron arrow autumn badger bagpipe bamboo banjo barley basil beard beetle bishop
    blizzard bonnet bottle bracelet breeze bronze brother buffalo butter button cabbage cactus camel candle
    canyon caramel carpet carrot castle cathedral cedar cello cheese cherry chimney cinnamon circus clarinet
    clover coconut comet copper coral cotton cousin coyote cradle cricket crocus crown crystal curtain cushion
    daisy dentist desert diamond dolphin donkey dragon drum dungeon eagle earring echo elbow elephant emerald
    empire engine envelope falcon feather fern fiddle flamingo flute forest fountain fox galaxy garden garlic
    gazelle ghost ginger giraffe glacier glove goblin goose granite grape grasshopper guitar hammer harbour harp
    hazel hedgehog helmet heron honey horizon horse iceberg igloo insect iron island ivory jacket jaguar jasmine
    jelly jewel jungle kangaroo kettle kitten koala ladder lagoon lantern lavender lawyer lemon leopard lettuce
    lighthouse lily lizard lobster magnet mango maple marble meadow melon mermaid meteor mirror monsoon moose
    mosquito mountain mushroom mustard napkin necklace needle nephew nettle nutmeg oasis ocean octopus olive
    onion opera orchard orchid ostrich otter oyster paddle palace panda panther parade parrot peacock peanut
    pebble pelican penguin pepper piano pigeon pillow pirate plum poem poet potato prairie prince pumpkin puppet
    pyramid queen rabbit radish rainbow raven ribbon river robin rocket rooster ruby saddle saffron sailor
    salmon sapphire saxophone scarf scorpion seagull shadow shepherd shrimp silver sister slipper snail sparrow
    spider spinach squirrel statue summer sunset swan sword tailor teapot temple thistle thunder tiger tobacco
    tortoise trumpet tulip turnip turtle umbrella uncle valley vampire velvet village vinegar violin volcano
    vulture walnut walrus waterfall whale widow willow winter wizard wolf wrist yoghurt zebra""".split()
)
"""For types, objects and everything else."""
