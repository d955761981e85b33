// franz-go: creates a topic, copies it to another in transactions of a group, aborts one, reads what is committed.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const source, target, records = "franz-source", "franz-target", 300

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	address := os.Args[1]
	client := newClient(address)
	defer client.Close()
	admin := kadm.NewClient(client)
	created, err := admin.CreateTopics(ctx, 3, 1, nil, source, target)
	check(err)
	check(created.Error())
	for i := 0; i < records; i++ {
		text := []byte(fmt.Sprintf("%d", i))
		client.Produce(ctx, &kgo.Record{Topic: source, Key: text, Value: text}, func(_ *kgo.Record, err error) { check(err) })
	}
	check(client.Flush(ctx))
	copied := copyInTransactions(ctx, address)
	read := readCommitted(ctx, address)
	for value, count := range read {
		if count != 1 {
			log.Fatalf("%s was copied %d times", value, count)
		}
	}
	lags, err := admin.Lag(ctx, "franz")
	check(err)
	check(lags.Error())
	if total := lags["franz"].Lag.Total(); total != 0 {
		log.Fatalf("a lag of %d", total)
	}
	fmt.Println(len(read), "values,", copied, "copied")
}

// The first transaction is aborted: its records are polled and copied again.
func copyInTransactions(ctx context.Context, address string) int {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(address), kgo.TransactionalID("franz"), kgo.ConsumerGroup("franz"), kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	check(err)
	defer session.Close()
	copied, isAborted := 0, false
	for copied < records {
		fetches := session.PollRecords(ctx, 100)
		check(fetches.Err())
		check(session.Begin())
		fetches.EachRecord(func(each *kgo.Record) {
			// An abort may drop what is not sent yet; other errors are those of End.
			session.Produce(ctx, &kgo.Record{Topic: target, Key: each.Key, Value: each.Value}, nil)
		})
		end := kgo.TransactionEndTry(isAborted)
		isAborted = true
		committed, err := session.End(ctx, end)
		check(err)
		if committed {
			copied += fetches.NumRecords()
		}
	}
	return copied
}

func readCommitted(ctx context.Context, address string) map[string]int {
	client := newClient(
		address, kgo.ConsumeTopics(target), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	defer client.Close()
	read := map[string]int{}
	for len(read) < records {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(each *kgo.Record) { read[string(each.Value)]++ })
	}
	return read
}

func newClient(address string, options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(address))...)
	check(err)
	return client
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
